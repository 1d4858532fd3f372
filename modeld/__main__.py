"""Entry point of the ``modeld`` command and of ``python -m modeld``.

It puts this project's packages first on the import path, then runs ``tools.cli``. It is in the
package ``modeld`` because no other distribution uses that name. `tools` is a higher layer, which
``modeld`` must not import, so its module is loaded by name (ADR 0001).
"""

import importlib
import sys

from modeld.own_packages import PACKAGES, put_first


def main() -> int:
    """Run the command; return its exit code.

    Raises ImportError if another project's packages with our names are already imported.
    """
    put_first(PACKAGES)
    return int(importlib.import_module("tools.cli").main())


if __name__ == "__main__":
    sys.exit(main())
