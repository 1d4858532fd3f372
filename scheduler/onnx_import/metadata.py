"""Parses model metadata of openpilot's exporter: the checkpoint's name and the output slices.

`output_slices` is the base64 text of a pickled dict name -> slice. A pickle can run code, so its
opcodes are checked first, and the unpickler accepts no global except `builtins.slice` of integers.
Nested values are refused, because hashing or printing them can take exponential time. Slices can
overlap and leave gaps: exporters write a `pad` slice over the whole output (`slice(0, None)`), and
leave out unused outputs.
"""

from __future__ import annotations

import base64
import binascii
import io
import pickle
import pickletools
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.errors import ModelError
from scheduler.onnx_import.limits import one_line

CHECKPOINT_KEY = "model_checkpoint"
SLICES_KEY = "output_slices"
# The output to which the slices apply, in models with several outputs (states).
SLICED_OUTPUT = "outputs"
# The largest known dict has about twenty entries, a few hundred bytes.
MAX_PICKLE_BYTES = 1 << 16

# The opcodes of a pickled dict of slices, in any protocol. BUILD, NEWOBJ, persistent ids and the
# extension registry are excluded. Memo indices are bounded, because a large one would allocate a
# large table.
_MEMO_OPCODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"})
_OPCODES = (
    _MEMO_OPCODES
    | {"PROTO", "FRAME", "STOP", "MARK", "POP", "MEMOIZE", "NONE"}
    | {"EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"}
    | {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2"}
    | {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"GLOBAL", "STACK_GLOBAL", "REDUCE"}
)
_MAX_MEMO_INDEX = MAX_PICKLE_BYTES
_TUPLES = frozenset({"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_REMEMBER = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxstring = 2, 3, 60


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of a model, parsed."""

    checkpoint: str = ""  # name of the training run; "" if unknown
    # Name -> (start, stop) on the last axis of the output, 0 <= start < stop <= width.
    output_slices: dict[str, tuple[int, int]] = field(default_factory=dict)
    props: dict[str, str] = field(default_factory=dict)  # all metadata as text, unparsed


def parse_metadata(props: Mapping[str, str], width: int | None, where: str) -> ModelMetadata:
    """Parse a model's metadata_props.

    `width` is the size of the last axis of the sliced output (see `sliced_width`), or None if there
    is no such output. Raises ModelError if the slices are unreadable or do not fit the width.
    """
    slices: dict[str, tuple[int, int]] = {}
    text = props.get(SLICES_KEY)
    if text is not None:
        if width is None:
            raise ModelError(
                f"{where}: {SLICES_KEY} needs a model with exactly one output, or with one that is "
                f'called "{SLICED_OUTPUT}", of at least one axis'
            )
        slices = resolve_slices(load_slices(text, where), width, where)
    return ModelMetadata(props.get(CHECKPOINT_KEY, ""), slices, dict(props))


def sliced_width(shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Return the last size of the only output, or of output "outputs"; None without either."""
    only = next(iter(shapes.values())) if len(shapes) == 1 else shapes.get(SLICED_OUTPUT, ())
    return only[-1] if only else None


def load_slices(text: str, where: str) -> dict[str, slice]:
    """Return the dict name -> slice in the base64 text of a pickle, without running code.

    Raises ModelError if it is damaged or contains anything else.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ModelError(f"{where}: {SLICES_KEY} is not base64 text: {one_line(error)}") from error
    _scan(data, where)
    try:
        value = _SliceUnpickler(io.BytesIO(data)).load()
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    except Exception as error:
        raise ModelError(f"{where}: {SLICES_KEY} cannot be read: {one_line(error)}") from error
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and isinstance(item, slice) for key, item in value.items()
    ):
        raise ModelError(f"{where}: {SLICES_KEY} must map names to slices, found {_short(value)}")
    return value


def resolve_slices(
    slices: Mapping[str, slice], width: int, where: str
) -> dict[str, tuple[int, int]]:
    """Return name -> (start, stop) for an output of `width`, or raise ModelError."""
    resolved = {}
    for name, item in slices.items():
        bounds = [_bound(item.start, 0, width), _bound(item.stop, width, width)]
        start, stop = bounds
        ok = (
            item.step in (None, 1)
            and start is not None
            and stop is not None
            and 0 <= start < stop <= width
        )
        if not ok or start is None or stop is None:
            raise ModelError(
                f"{where}: {SLICES_KEY}[{_short(name)}] = {_short(item)} does not fit the output "
                f"of width {width}"
            )
        resolved[name] = (start, stop)
    return resolved


def _bound(value: Any, default: int, width: int) -> int | None:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value + width if value < 0 else value


class _SliceUnpickler(pickle.Unpickler):
    """Unpickles plain data and slices."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the slice constructor; raise ModelError for every other global."""
        # Pickle protocols before 3 use the module's Python 2 name.
        if module in ("builtins", "__builtin__") and name == "slice":
            return _checked_slice
        raise ModelError(
            f"{SLICES_KEY}: refused global {_short(f'{module}.{name}')}; "
            "only builtins.slice is allowed"
        )


def _checked_slice(*bounds: object) -> slice:
    """Return a slice of integers or None; other bounds, such as nested slices, are refused."""
    if not all(bound is None or type(bound) is int for bound in bounds):
        found = ", ".join(_short(bound) for bound in bounds)
        raise ModelError(f"{SLICES_KEY}: expected slices of integers, found slice({found})")
    return slice(*bounds)


def _scan(data: bytes, where: str) -> None:
    """Raise ModelError for opcodes that a dict of slices does not need; nothing is executed."""
    if len(data) > MAX_PICKLE_BYTES:
        raise ModelError(
            f"{where}: {SLICES_KEY}: expected at most {MAX_PICKLE_BYTES} bytes, found {len(data)}"
        )
    try:
        opcodes = [(op.name, arg, position) for op, arg, position in pickletools.genops(data)]
    except Exception as error:
        raise ModelError(f"{where}: {SLICES_KEY} is damaged: {one_line(error)}") from error
    made_tuple = False
    for name, argument, position in opcodes:
        if name not in _OPCODES:
            raise ModelError(f"{where}: {SLICES_KEY}: refused pickle opcode {name} at {position}")
        # Hashing nested tuples can take exponential time, so each tuple must be a slice's bounds.
        if made_tuple and name not in _REMEMBER and name != "REDUCE":
            raise ModelError(
                f"{where}: {SLICES_KEY}: refused a tuple that is not a slice at {position}"
            )
        made_tuple = name in _TUPLES or (made_tuple and name in _REMEMBER)
        if name in _MEMO_OPCODES and int(argument or 0) > _MAX_MEMO_INDEX:
            raise ModelError(
                f"{where}: {SLICES_KEY}: memo index {argument} at {position} is out of bounds"
            )


def _short(value: object) -> str:
    if isinstance(value, slice):  # the bounds are integers, see `_checked_slice`
        value = f"slice({', '.join(_SHORT.repr(v) for v in (value.start, value.stop, value.step))})"
        return str(value)
    text = _SHORT.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
