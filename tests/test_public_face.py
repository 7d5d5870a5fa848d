"""What users may import, and what importing it does not pull in."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import assent
import assent.ledger
import assent.protocol
from assent.protocol import errors

EXTRAS = (
    "confluent_kafka",
    "happybase",
    "kafka",
    "psycopg",
    "pymysql",
    "redis",
    "rich",
    "typer",
)

WATCH = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            print(name)
        return None

sys.meta_path.insert(0, Watch())
{statements}
"""


def asked_for(statements: str, names: tuple[str, ...]) -> list[str]:
    """Which of these libraries somebody tries to import, installed or not."""
    result = subprocess.run(
        [sys.executable, "-c", WATCH.format(names=set(names), statements=statements)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return result.stdout.split()


def test_the_public_names_are_these() -> None:
    assert sorted(assent.__all__) == [
        "AssentError",
        "ConfigurationError",
        "EpochListener",
        "Epochs",
        "FencedError",
        "FilesSink",
        "Guarantee",
        "HBaseSink",
        "Handle",
        "IdentityError",
        "InDoubtError",
        "KafkaSink",
        "LedgerError",
        "LossError",
        "MySqlSink",
        "Pending",
        "PostgresSink",
        "RedisSink",
        "ReplayError",
        "RetriableError",
        "Sink",
        "TornEpochError",
        "TransactionName",
        "Verdict",
        "__version__",
        "register",
    ]


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in assent.__all__:
        found = getattr(assent, name)
        assert isinstance(found, str) or inspect.getdoc(found), name


def test_importing_assent_asks_for_no_library_of_an_extra_and_starts_no_spark() -> None:
    assert asked_for("import assent", (*EXTRAS, "pyspark", "py4j")) == []


def test_the_extras_are_those_of_the_project() -> None:
    """A new extra has to be added above."""
    import tomllib

    project = Path(__file__).parent.parent / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    required = {
        re.split(r"[\[<>=~!; ]", requirement)[0].replace("-", "_")
        for extra, requirements in extras.items()
        if extra not in ("dev", "bench")  # no part of the package uses these
        for requirement in requirements
        if not requirement.startswith("assent")
    }
    assert required - {"kafka_python"} == set(EXTRAS) - {"kafka"}


def test_the_protocol_and_the_ledger_import_no_spark() -> None:
    names = [
        module.name
        for package in (assent.protocol, assent.ledger)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    assert len(names) > 20
    statements = "\n".join(f"import {name}" for name in names)
    assert asked_for(statements, ("pyspark", "py4j", *EXTRAS)) == []


def test_the_protocol_touches_no_disk_and_no_network() -> None:
    """I/O is at the edge: in the ledger, in sinks and in front-ends."""
    folder = Path(assent.protocol.__path__[0])
    forbidden = re.compile(r"^\s*(import|from) (os|pathlib|socket|subprocess|tempfile|shutil)\b")
    for path in folder.glob("*.py"):
        for line in path.read_text().splitlines():
            assert not forbidden.match(line), f"{path.name}: {line}"


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    tree = re.findall(r"^    ([│ ├└─]*)(\w+Error)\b(.*)$", errors.__doc__ or "", re.MULTILINE)
    drawn: dict[str, str] = {}
    path: dict[int, str] = {}
    for indent, name, text in tree:
        depth = len(indent) // 4
        path[depth] = name
        drawn[name] = path[depth - 1] if depth else "Exception"
        assert depth == 0 or text.strip(), f"{name} is not explained"
    defined = {
        name: found.__bases__[0].__name__
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if found.__module__ == errors.__name__
    }
    assert drawn == defined


def test_every_error_is_public() -> None:
    defined = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert defined <= set(assent.__all__)
