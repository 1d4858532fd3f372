"""``modeld bench --roofline``: every kernel with the ceilings of the device, in the same run.

The ceilings (multiply-adds, reading each memory level, numpy's sgemm) are measured before, between
and after the profiles, and the best of each counts: what limits a kernel is what the machine could
have done. See ``tools.timing.roofline`` for the sums.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import runtime
from runtime.origin import short_origin
from runtime.quantities import count_text
from tools.lib.json_output import print_json
from tools.lib.terminal import format_table
from tools.timing.program_inputs import inputs_for
from tools.timing.roofline import (
    FLAG_ROOFLINE,
    FLAG_SHARE,
    CeilingProbe,
    Ceilings,
    KernelRow,
    RooflineRow,
    describe,
    make_kernels,
    make_rows,
    quietest,
    share_below,
    weight_bytes_of,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

# Rounds of ceilings and profile.
ROUNDS = 2
MAX_ITERATIONS = 50  # of one round: more tells nothing about kernels


def run_roofline(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        ArtifactError, NoDeviceError, InputError, RuntimeFault: as `load_program` and `profile`.
    """
    device = runtime.choose_device(args.device)
    with runtime.load_program(args.path[0], device) as program:
        entry = args.entry or program.entries[0]
        inputs = inputs_for(program.entry_inputs(entry), args.inputs, args.seed)
        probe = CeilingProbe(device)
        ceilings = probe.measure()
        iterations = min(args.iters, MAX_ITERATIONS)
        profiles = []
        for _ in range(ROUNDS):
            profiles.append(program.profile(inputs, entry, iterations))
            ceilings = ceilings.best_of(probe.measure())
        weights = weight_bytes_of(program.manifest, entry)
        rows = make_rows(quietest(profiles), weights, ceilings)
        name = program.manifest.name
    if args.json:
        measured = {"artifact": name, "entry": entry, "device": device.info.name}
        print_json({**measured, **_roofline_json(ceilings, rows)})
    else:
        print(f"{name}, entry {entry}, on {device.info.name}")
        _print_rows(ceilings, rows)
    return 0


def _roofline_json(ceilings: Ceilings, rows: Sequence[RooflineRow]) -> dict[str, Any]:
    """Return the launches for ``--json``."""
    kernels = make_kernels(rows, ceilings)
    return {
        "ceilings": {
            "gflops": ceilings.gflops,
            "sgemm_gflops": ceilings.sgemm_gflops or None,
            "gbytes_per_s": {level.name: level.gbytes_per_s for level in ceilings.levels},
        },
        "kernels_ms": sum(row.ms for row in rows),
        "flagged": [kernel.name for kernel in kernels if kernel.flagged],
        "below_half_share": share_below(rows),
        "kernels": [asdict(kernel) for kernel in kernels],
        "launches": [asdict(row) for row in rows],
    }


def explain_excess(rows: Sequence[RooflineRow]) -> list[str]:
    """Return what rates over 100 % are of; [] where there are none."""
    beyond = [row for row in rows if max(row.of_roofline, row.of_sgemm or 0.0) > 1.005]
    if not beyond:
        return []
    return [
        f"\nof roof or of sgemm over 100 %: {count_text(len(beyond), 'launch')}",
        "  operations are counted as the model defines them; Winograd's 3x3 convolutions multiply",
        "  16 times where the definition has 36, and numpy's sgemm is not all a device can do",
    ]


def _print_rows(ceilings: Ceilings, rows: Sequence[RooflineRow]) -> None:
    for line in describe(ceilings):
        print(f"  ceiling  {line}")
    kernels = make_kernels(rows, ceilings)
    cells = [
        (
            kernel.name,
            len(kernel.launches),
            kernel.ms,
            kernel.min_ms,
            f"{kernel.share:.1%}",
            kernel.flops / 1e6,
            kernel.bytes_moved / 1e6,
            round(kernel.gflops),
            round(kernel.gbytes_per_s),
            kernel.bound,
            f"{kernel.of_roofline:.0%}" + (" !" if kernel.flagged else ""),
            "-" if kernel.of_sgemm is None else f"{kernel.of_sgemm:.0%}",
            short_origin(kernel.origin),
        )
        for kernel in kernels
    ]
    header = ("kernel", "runs", "ms", "min", "share", "Mflop", "MB", "GFLOP/s", "GB/s", "bound")
    total_ms = sum(row.ms for row in rows)
    counts = f"{count_text(len(kernels), 'kernel')} in {count_text(len(rows), 'launch')}"
    print(f"\n{counts}, medians, {total_ms:.3f} ms together:")
    print(format_table((*header, "of roof", "of sgemm", "from"), cells))
    print("\n".join(["", _verdict(kernels, rows), *explain_excess(rows)]))


def _verdict(kernels: Sequence[KernelRow], rows: Sequence[RooflineRow]) -> str:
    flagged = [kernel for kernel in kernels if kernel.flagged]
    return (
        f"kernels over {FLAG_SHARE:.0%} of the frame and below {FLAG_ROOFLINE:.0%} of their "
        f"roofline (!): {len(flagged)}, {sum(kernel.share for kernel in flagged):.1%} of the "
        f"frame; all launches below {FLAG_ROOFLINE:.0%}, small ones too: {share_below(rows):.1%}"
    )
