"""What a manifest says of the code of a kernel, checked; used by `runtime.manifest` only.

    kind           text: `contract`, `reduce`, `map` or `custom`
    start, end     characters of the program's source that hold the function, without callees
    writes         the first so many of `args` are written, the others only read
    float64        whether it computes in float64
    local_bytes    local memory of a work-group
    image_reads    texel reads in the text; those in a loop count once, as do the following
    gated_reads    reads that a condition may replace by a fill value
    image_writes   texel writes

The key is for whoever looks at an artifact: running it needs none of this. Loading only compares
how many images a kernel reads and writes with what the device takes.
"""

from typing import Final

from runtime.errors import ArtifactError
from runtime.fields import Fields

# Bytes of local memory, or accesses in a text: more than any kernel has.
_MAX_COUNT: Final = 2**31 - 1
_COUNTS: Final = ("local_bytes", "image_reads", "gated_reads", "image_writes")


def check_code(kernel: Fields, source: str, args: int) -> int:
    """Check the key `code` of a kernel, which may be missing; return how many arguments it writes.

    Args:
        kernel: the fields of the kernel.
        source: of its program.
        args: how many arguments it has.

    Raises:
        ArtifactError: a field is missing, mistyped or out of range.
    """
    if "code" not in kernel.value:
        return 1
    code = Fields(kernel.get("code", dict), f"{kernel.where}.code")
    code.text("kind")
    code.get("float64", bool)
    writes = code.number("writes", 0, args)
    for key in _COUNTS:
        code.number(key, 0, _MAX_COUNT)
    start, end = code.number("start", 0, len(source)), code.number("end", 0, len(source))
    if start > end:
        raise ArtifactError(f"{code.where}: start {start} is behind end {end}")
    return writes
