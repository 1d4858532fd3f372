"""Formats numbers with units and names of ONNX nodes, and parses numbers in foreign text."""

import re
from collections.abc import Sequence
from typing import Final


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 launch", "1,368 launches".

    `plural` defaults to the noun with "s", or "es" after s, x, z, ch and sh.
    """
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s"
    return f"{count:,} {plural or noun + ending}"


def size_text(size: float) -> str:
    """Return a number of bytes in a readable unit: "512 B", "3.4 KiB", "29.0 MiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} GiB"


def flops_text(flops: float) -> str:
    """Return an operation count to four digits: "512 FLOP", "3.456 kFLOP", "1.646 GFLOP"."""
    unit, size = _flops_unit(flops)
    return f"{flops / size:.4g} {unit}"


def flops_column(values: Sequence[int]) -> tuple[str, list[float]]:
    """Return one unit that suits the largest operation count of a column, and the scaled values."""
    unit, size = _flops_unit(max(values, default=0))
    return unit, [value / size if size > 1 else value for value in values]


def _flops_unit(flops: float) -> tuple[str, int]:
    """Return the unit in which an operation count has one to three digits, and the unit's size."""
    size = 1
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if flops < 999.95 * size:
            return unit, size
        size *= 1000
    return "TFLOP", size


# --- Short forms of ONNX node names, for tables, pages and traces -----------------------------

ORIGIN_WIDTH = 44
_GAP = ".."


def short_origin(names: Sequence[str], width: int = ORIGIN_WIDTH) -> str:
    """Return a short form of ONNX node names: the last one's layer, its nodes, the other count.

    ("/a/Erf", "/b/Conv", "/b/Mul")  ->  "/b/{Conv,Mul} +1". Names are in topological order, so the
    last one is the result of the kernel.
    """
    if not names:
        return "-"
    layer, slash, last = names[-1].rpartition("/")
    parts = [n.rpartition("/") for n in names]
    mine = [name for head, _, name in parts if head == layer] if slash else [last]
    others = len(names) - len(mine)
    more = f" +{others}" if others else ""
    if len(mine) == 1:
        return shorten(names[-1], width - len(more)) + more
    room = width - len(more) - len(layer) - 3
    kept = list(mine)
    while len(kept) > 1 and len(",".join(kept)) + 3 * (len(kept) < len(mine)) > room:
        del kept[len(kept) // 2]
    if len(kept) < len(mine):
        kept.insert((len(kept) + 1) // 2, _GAP)
    return shorten(f"{layer}/{{{','.join(kept)}}}", width - len(more)) + more


def shorten(name: str, width: int) -> str:
    """Return a name with ".." for layers in its middle, so that it has at most `width` characters.

    "/model/stages.2/blocks.1/Conv"  ->  "/model/../blocks.1/Conv". The first and last layers are
    kept as long as possible; if one layer alone is too long, its middle is replaced.
    """
    if len(name) <= width:
        return name
    layers = name.split("/")
    first = 2 if name.startswith("/") else 1  # a leading slash makes an empty first layer
    for kept in (first, first - 1):
        for behind in range(kept + 1, len(layers)):
            shorter = "/".join([*layers[:kept], _GAP, *layers[behind:]])
            if len(shorter) <= width:
                return shorter
    head = width // 2 - len(_GAP)
    return f"{name[:head]}{_GAP}{name[head + len(_GAP) - width :]}"


# --- Numbers in the text of other programs: only ASCII digits, without separators -------------
# Python's ``float`` and ``int`` also accept ``1_0`` for 10, and the digits of every script.

_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE
)
# More digits than any of our numbers has, and fewer than Python's limit for conversions.
_INT: Final = re.compile(r"[+-]?[0-9]{1,40}")


def float_of(text: str) -> float:
    """Return the number in `text`, ignoring surrounding spaces; nan and inf are allowed.

    Raises ValueError if it is not a number.
    """
    return float(_checked(_FLOAT, text))


def int_of(text: str) -> int:
    """Return the integer in `text`, ignoring surrounding spaces; raise ValueError for others."""
    return int(_checked(_INT, text))


def _checked(form: re.Pattern[str], text: str) -> str:
    bare = text.strip()
    if form.fullmatch(bare) is None:
        raise ValueError(f"expected a number, found {text[:40]!r}")
    return bare
