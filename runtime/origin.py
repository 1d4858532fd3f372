"""Names of ONNX nodes in few characters, for tables, pages and traces."""

from collections.abc import Sequence

ORIGIN_WIDTH = 44
_GAP = ".."


def short_origin(names: Sequence[str], width: int = ORIGIN_WIDTH) -> str:
    """Return ONNX node names in few characters: the last one's layer, what it has, how many others.

    ("/a/Erf", "/b/Conv", "/b/Mul")  ->  "/b/{Conv,Mul} +1". Names are in topological order, so the
    kernel ends with the last one.
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
    """Return a name with layers left out of its middle, ".." in their place, until it fits.

    "/model/stages.2/blocks.1/Conv"  ->  "/model/../blocks.1/Conv". The first and last layer stay
    longest; a single layer that is too long is cut inside.
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
