"""The `assent` command without its extra."""

from __future__ import annotations

import sys

import pytest

from assent.ops import command


@pytest.mark.parametrize("missing", command.NEEDED)
def test_without_the_extra_one_line_names_the_pip_command(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    assert command.main() == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert missing in printed.err
    assert "pip install 'assent[ops]'" in printed.err
