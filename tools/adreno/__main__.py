"""Fetch the compiler for Adreno: `make adreno-tools`.

python -m tools.adreno          fetch it where it is not there
python -m tools.adreno --where  print its folder
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.adreno.toolchain import MESA, fetch_toolchain, toolchain_dir
from tools.errors import ToolError
from tools.lib.terminal import counted


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or the exit code of what cannot be had here."""
    parser = argparse.ArgumentParser(prog="python -m tools.adreno", description=__doc__)
    parser.add_argument("--where", action="store_true", help="print the folder, fetch nothing")
    args = parser.parse_args(arguments)
    if args.where:
        print(toolchain_dir())
        return 0
    try:
        toolchain = fetch_toolchain(counted)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{toolchain.root.parent}: Mesa {MESA} for Adreno")
    return 0


if __name__ == "__main__":
    sys.exit(main())
