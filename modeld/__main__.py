"""The ``modeld`` command and ``python -m modeld``: our packages first, then ``tools.cli``.

It stands in the one package of ours whose name nobody else has, and names the module that it runs
instead of importing it: that lies above (ADR 0001).
"""

import importlib
import sys

from modeld.own_packages import PACKAGES, put_first


def main() -> int:
    """Run the command; return its exit code.

    Raises ImportError if foreign packages of our names are imported already.
    """
    put_first(PACKAGES)
    return int(importlib.import_module("tools.cli").main())


if __name__ == "__main__":
    sys.exit(main())
