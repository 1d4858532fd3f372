"""Numbers with their units for people: counts, bytes, operations."""


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Return "1 launch", "1,368 launches".

    Args:
        count: how many.
        noun: what, in the singular.
        plural: where it is not the noun with an "s" ("es" after s, x, z, ch and sh).
    """
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s"
    return f"{count:,} {plural or noun + ending}"


def size_text(size: float) -> str:
    """Return bytes for people: "512 B", "3.4 KiB", "29.0 MiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} GiB"


def flops_text(flops: float) -> str:
    """Return operations for people, to four digits: "512 FLOP", "3.456 kFLOP", "1.646 GFLOP"."""
    for unit in ("", "k", "M", "G"):
        if flops < 999.95:
            return f"{flops:.4g} {unit}FLOP"
        flops /= 1000
    return f"{flops:.4g} TFLOP"
