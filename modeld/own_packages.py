"""Puts this project's packages before others of the same names on the import path.

The names are common: openpilot also has packages `cereal` and `tools`, and its root is in
PYTHONPATH on its devices. Therefore ``import modeld`` reorders ``sys.path`` for the packages that
it needs, and the command ``modeld`` does so for all. This module imports the standard library only,
because other imports could find foreign packages.

As a script, it runs a module of this project the way ``python -m`` does (`runtime.own_process`)::

    python -P .../modeld/own_packages.py tools.cli status
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Final

PACKAGES: Final = ("cereal", "modeld", "runtime", "scheduler", "tools")
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 -- pathlib takes longer than all of this
_REAL_ROOT: Final = os.path.realpath(_ROOT)


def put_first(names: Sequence[str]) -> None:
    """Make sure that imports of these packages find this project's, also in spawned processes.

    Path entries with foreign packages of these names are moved behind this project's root. All
    other entries stay in order, because files next to our packages can have names of standard
    library modules. Raises ImportError if a foreign package is already imported, or is found by
    other means than the path.
    """
    foreign = _order_path(names)
    for name in names:
        _check(name)
    if foreign and not any(isinstance(finder, _Explainer) for finder in sys.meta_path):
        sys.meta_path.append(_Explainer(names, foreign))


def _order_path(names: Sequence[str]) -> list[str]:
    """Move path entries with foreign packages of these names behind our root; return them."""
    ours = [os.path.realpath(entry) == _REAL_ROOT for entry in sys.path]
    if not any(ours):
        sys.path.append(_ROOT)
        ours.append(True)
    first = ours.index(True)
    foreign = [
        entry
        for entry, is_ours in zip(sys.path, ours, strict=True)
        if not is_ours and any(_origin(PathFinder.find_spec(name, [entry])) for name in names)
    ]
    before, after = sys.path[:first], sys.path[first + 1 :]
    sys.path[:] = [
        *(entry for entry in before if entry not in foreign),
        sys.path[first],
        *(entry for entry in before if entry in foreign),
        *after,
    ]
    return foreign


def _check(name: str) -> None:
    loaded = sys.modules.get(name)
    try:
        found = _origin(importlib.util.find_spec(name))
    except ValueError:  # the loaded module has no __spec__
        found = getattr(loaded, "__file__", None)
    ours = _origin(PathFinder.find_spec(name, [_ROOT]))
    if found is None or ours is None or os.path.realpath(found) != os.path.realpath(ours):
        how = "is imported already" if loaded else "comes before it"
        raise ImportError(
            f"modeld: expected the package {name!r} of {_ROOT}, found that of {found}, which "
            f"{how}; use one of them in a process only, such as ours by the command modeld",
            name=name,
        )


def _origin(spec: ModuleSpec | None) -> str | None:
    """Return the file of a package; None for a directory that is only a namespace package.

    Such a directory never hides a regular package later on the path.
    """
    return spec.origin if spec is not None and spec.loader is not None else None


class _Explainer:
    """The last import finder: explains a missing module that a foreign package might have."""

    def __init__(self, names: Sequence[str], foreign: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._foreign = " or ".join(map(os.path.abspath, foreign))

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - the import system fixes the signature
        """Raise ImportError for a module of our packages that no other finder has found."""
        package, _, inner = fullname.partition(".")
        if package in self._names and inner:
            raise ImportError(
                f"{fullname}: expected it in the package {package!r} of {_ROOT}, which modeld "
                f"needs, found none; if that of {self._foreign} is meant, use it in a "
                "process without modeld",
                name=fullname,
            )


if __name__ == "__main__":
    import runpy

    _order_path(PACKAGES)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
