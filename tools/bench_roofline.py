"""``modeld bench --roofline``: every kernel beside the ceilings of the device, in the same run.

The ceilings (multiply-adds, reading each memory level, numpy's sgemm) are measured before, between
and after the profiles, and the best of each counts: what limits a kernel is what the machine could
have done. See ``tools.lib.roofline`` for the sums.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import runtime
from tools.bench import make_inputs
from tools.lib.ceilings import CeilingProbe, Ceilings, describe
from tools.lib.json_output import print_json
from tools.lib.roofline import (
    FLAG_ROOFLINE,
    FLAG_SHARE,
    RooflineRow,
    make_rows,
    quietest,
    weight_bytes_of,
)
from tools.lib.table import format_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

# Rounds of ceilings and profile.
ROUNDS = 2
MAX_ITERATIONS = 50  # of one round: more tells nothing about kernels


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        ArtifactError, NoDeviceError, InputError, RuntimeFault: as `load_program` and `profile`.
    """
    device = runtime.choose_device(args.device)
    with runtime.load_program(args.path[0], device) as program:
        entry = args.entry or program.entries[0]
        inputs = make_inputs(program.entry_inputs(entry), args.seed)
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
        print_json(as_json(name, entry, device.info.name, ceilings, rows))
    else:
        print(f"{name}, entry {entry}, on {device.info.name}")
        _print_rows(ceilings, rows)
    return 0


def as_json(
    name: str, entry: str, device: str, ceilings: Ceilings, rows: Sequence[RooflineRow]
) -> dict[str, Any]:
    """Return the object of ``--json``."""
    return {
        "artifact": name,
        "entry": entry,
        "device": device,
        "ceilings": {
            "gflops": ceilings.gflops,
            "sgemm_gflops": ceilings.sgemm_gflops or None,
            "gbytes_per_s": {level.name: level.gbytes_per_s for level in ceilings.levels},
        },
        "kernels_ms": sum(row.ms for row in rows),
        "flagged": [row.launch for row in rows if row.flagged],
        "kernels": [{**asdict(row), "origin": list(row.origin)} for row in rows],
    }


def _print_rows(ceilings: Ceilings, rows: Sequence[RooflineRow]) -> None:
    for line in describe(ceilings):
        print(f"  ceiling  {line}")
    cells = [
        (
            row.launch,
            row.name,
            row.ms,
            row.min_ms,
            f"{row.share:.1%}",
            row.flops / 1e6,
            row.bytes_moved / 1e6,
            round(row.gflops),
            round(row.gbytes_per_s),
            row.bound,
            f"{row.of_roofline:.0%}" + (" !" if row.flagged else ""),
            "-" if row.of_sgemm is None else f"{row.of_sgemm:.0%}",
            ", ".join(row.origin[:2])[:50],
        )
        for row in rows
    ]
    header = ("#", "kernel", "ms", "min", "share", "Mflop", "MB", "GFLOP/s", "GB/s", "bound")
    print(f"\n{len(rows)} launches, {sum(row.ms for row in rows):.3f} ms on the device:")
    print(format_table((*header, "of roof", "of sgemm", "from"), cells))
    flagged = [row for row in rows if row.flagged]
    print(
        f"\n{len(flagged)} launches take over {FLAG_SHARE:.0%} of the frame and reach less than "
        f"{FLAG_ROOFLINE:.0%} of their roofline (!), {sum(row.share for row in flagged):.0%} of "
        "the frame together"
    )
