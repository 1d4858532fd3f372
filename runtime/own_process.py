"""Command lines that run a module of this project in a process of its own."""

import sys
from pathlib import Path
from typing import Final

_STARTER: Final = Path(__file__).parent.parent / "modeld" / "own_packages.py"


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours, from where this one is.

    ``python -m`` would look in the working directory first and in PYTHONPATH next, and either may
    hold other packages of our names.
    """
    return [sys.executable, "-P", str(_STARTER), module, *arguments]
