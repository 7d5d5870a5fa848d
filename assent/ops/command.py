"""The `assent` command: what is installed even where the extra `ops` is not."""

from __future__ import annotations

import importlib
import importlib.util
import sys

NEEDED = ("typer", "rich")
"""The modules that the extra `ops` brings."""


def main() -> int:
    """Run the command line; without its extra, say in one line how to get it and return 2."""
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"assent: the command line needs {' and '.join(missing)}: pip install 'assent[ops]'",
            file=sys.stderr,
        )
        return 2
    # By name, so that neither the import of this module nor its type check needs the extra.
    result = importlib.import_module("assent.ops.cli").main()
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
