"""Builds commands that run a module of this project in a separate process.

The commands run this project's own modules, whatever the working directory contains.
"""

import sys
from pathlib import Path
from typing import Final

_STARTER: Final = Path(__file__).parent.parent / "modeld" / "own_packages.py"


def own_command(module: str, *arguments: str, tree: Path | None = None) -> list[str]:
    """Return the command that runs `module` from this installation, or from the checkout `tree`.

    ``python -m`` would search the working directory and PYTHONPATH first, and either may contain
    other packages with our names. If `tree` has a ``.venv``, its Python is used.
    """
    if tree is None:
        return [sys.executable, "-P", str(_STARTER), module, *arguments]
    own = tree.absolute() / ".venv" / "bin" / "python"
    starter = tree.absolute() / "modeld" / _STARTER.name
    return [str(own) if own.exists() else sys.executable, "-P", str(starter), module, *arguments]
