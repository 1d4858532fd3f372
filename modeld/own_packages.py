"""Puts the packages of this project before others of the same names, whatever the path says.

Our names are plain words: openpilot has a `cereal` and a `tools` of its own, and its root is in
PYTHONPATH where it runs. So ``import modeld`` puts the path in order for what it needs, and the
command for all. Imports the standard library only, as anything else may be somebody else's.

Run by its path it starts a module of ours, as ``python -m`` does (`runtime.own_process`)::

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
    """Make sure that these packages are ours, in this process and in those that it spawns.

    Entries of the path that hold others move behind ours, and nothing else moves: other files next
    to our packages may have names of the standard library. Raises ImportError if another package is
    imported already, or something other than the path brings it.
    """
    foreign = _order_path(names)
    for name in names:
        _check(name)
    if foreign and not any(isinstance(finder, _Explainer) for finder in sys.meta_path):
        sys.meta_path.append(_Explainer(names, foreign))


def _order_path(names: Sequence[str]) -> list[str]:
    """Move entries with packages of these names behind the root of ours; return them."""
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
    except ValueError:  # a module that says nothing of its origin
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
    """Return where a package comes from; None of a directory of that name that is none.

    Such a directory never hides a package that comes later on the path.
    """
    return spec.origin if spec is not None and spec.loader is not None else None


class _Explainer:
    """Asked last: says of a missing module of our packages that others would have it."""

    def __init__(self, names: Sequence[str], foreign: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._foreign = " or ".join(map(os.path.abspath, foreign))

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - the import system fixes the signature
        """Raise ImportError for a module of our packages; nobody has found it."""
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
