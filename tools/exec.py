"""``modeld exec``: run an artifact once on arrays from a file.

Example::

    modeld exec policy.pkl --inputs in.npz --outputs out.npz

The input file holds one array per input, by name; ``modeld inspect`` shows names and shapes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.whole_file import whole_file
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.npz import write_npz
from tools.lib.table import format_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from numpy.typing import NDArray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("artifact", type=Path, help="made by modeld compile")
    parser.add_argument(
        "--inputs", type=Path, required=True, metavar="NPZ", help="one array per input, by name"
    )
    parser.add_argument(
        "--outputs", type=Path, required=True, metavar="NPZ", help="where the outputs go"
    )
    parser.add_argument("--entry", help="entry point (the artifact's first)")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")


def run(args: argparse.Namespace) -> int:
    """Run once and write the outputs.

    Raises:
        UsageError: the input file cannot be read, or the output file cannot be written.
        RuntimeFault: the artifact, the device or an input is not right.
    """
    from runtime import load_program

    inputs = _read_arrays(args.inputs)
    with load_program(args.artifact, args.device) as program:
        outputs = program.run(inputs, args.entry)
        run_ms = program.stats.last_run_ms
    _write_arrays(args.outputs, outputs)
    rows = [_describe(name, array) for name, array in outputs.items()]
    if args.json:
        print_json({"run_ms": run_ms, "outputs": rows})
    else:
        header = ("output", "dtype", "shape", "min", "max", "not finite")
        print(format_table(header, [list(row.values()) for row in rows]))
    return 0


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # numpy leaves a file open that it finds damaged; this one is ours to close.
        with path.open("rb") as file:
            # Without pickles: a file of arrays must not be able to run anything.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(f"{path}: expected an .npz of named arrays, found a single array")
            return {name: np.asarray(archive[name], order="C") for name in archive.files}
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        # numpy's own text advises to allow pickles, which is the last thing to do.
        raise UsageError(
            f"{path}: expected an .npz of plain arrays, as numpy.savez writes"
        ) from error


def _write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    try:
        with whole_file(path) as file:
            write_npz(file, arrays)
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror or error}") from error


def _describe(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "min": array.min().item() if array.size else None,
        "max": array.max().item() if array.size else None,
        # NaN and infinities: with --json, min and max are null then.
        "not_finite": int((~np.isfinite(array)).sum()),
    }
