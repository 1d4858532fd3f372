"""Command lines that run a module of this project in a process of its own."""

import sys
from pathlib import Path
from typing import Final

_STARTER: Final = Path(__file__).parent.parent / "modeld" / "own_packages.py"


def own_command(module: str, *arguments: str, tree: Path | None = None) -> list[str]:
    """Return the command that runs a module of ours from where this one is, or from `tree`.

    ``python -m`` would look in the working directory first and in PYTHONPATH next, and either may
    hold other packages of our names. Another checkout's own ``.venv`` is used, if it has one.
    """
    if tree is None:
        return [sys.executable, "-P", str(_STARTER), module, *arguments]
    own = tree.absolute() / ".venv" / "bin" / "python"
    starter = tree.absolute() / "modeld" / _STARTER.name
    return [str(own) if own.exists() else sys.executable, "-P", str(starter), module, *arguments]
