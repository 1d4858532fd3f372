"""Reads from the metadata where each named output lies in the raw vectors, and checks it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modeld.errors import ModelInterfaceError


@dataclass(frozen=True, slots=True)
class OutputSlice:
    """One named output.

    Attributes:
        role: Model that produces it, ``vision`` or ``policy``.
        start: First column in that model's raw vector.
        stop: One past the last column.
    """

    role: str
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Raw vectors and the named outputs inside them.

    Attributes:
        widths: Raw vector length by role, in the order the models run.
        slices: Named outputs; a name in two models is the later model's.
    """

    widths: Mapping[str, int]
    slices: Mapping[str, OutputSlice]


def read_output_layout(models: Mapping[str, Mapping[str, Any]]) -> OutputLayout:
    """Read ``metadata["models"]``.

    Bounds may be None or negative, as in Python slices; they are resolved against the width.

    Raises:
        ModelInterfaceError: A width or a slice is missing, malformed or out of range.
    """
    widths: dict[str, int] = {}
    slices: dict[str, OutputSlice] = {}
    for role, model in models.items():
        width, named = model.get("output_width"), model.get("output_slices")
        if not isinstance(width, int) or width <= 0 or not isinstance(named, Mapping):
            raise ModelInterfaceError(
                f"artifact metadata: model {role!r}: expected output_width and output_slices, "
                f"got {width!r} and {type(named).__name__}; recompile the artifact"
            )
        widths[role] = width
        for name, bounds in named.items():
            slices[name] = _resolve(role, str(name), bounds, width)
    return OutputLayout(widths, slices)


def _resolve(role: str, name: str, bounds: object, width: int) -> OutputSlice:
    if (
        isinstance(bounds, (list, tuple))
        and len(bounds) == 2
        and all(bound is None or isinstance(bound, int) for bound in bounds)
    ):
        start = _from_end(bounds[0], width, default=0)
        stop = _from_end(bounds[1], width, default=width)
        if 0 <= start < stop <= width:
            return OutputSlice(role, start, stop)
    raise ModelInterfaceError(
        f"artifact metadata: model {role!r}: output {name!r}: expected [start, stop] within "
        f"0..{width}, got {bounds!r}; recompile the artifact"
    )


def _from_end(bound: int | None, width: int, *, default: int) -> int:
    if bound is None:
        return default
    return bound + width if bound < 0 else bound
