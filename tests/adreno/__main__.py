"""Compile all kernels for an Adreno and compare with golden figures: `make adreno`.

    python -m tests.adreno [--update --reason TEXT] [--gpus 630 660 740] [WORKLOAD...]

The compiler is fetched if it is not there; where that is not possible, one line says why. Exit code
1 where a kernel is not built, or differs. Golden figures are those of the first GPU; of others the
sums are printed.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from runtime.texts import count_text
from tests.adreno.golden import compare, failures_of, read, write
from tests.adreno.workloads import WORKLOADS, Manifest, compiled
from tools.adreno.build import Built, Source, build, kernel_sources
from tools.adreno.cost import GPU_TABLE, EntryCost, entry_cost, sections
from tools.adreno.toolchain import GPUS, Toolchain, fetch_toolchain
from tools.errors import ToolError
from tools.lib.terminal import counted, format_table

Workload = Mapping[str, Manifest]


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parse(arguments)
    try:
        toolchain = fetch_toolchain(counted)
    except ToolError as error:
        print(f"make adreno is left out: {error}", file=sys.stderr)
        return error.exit_code if args.update else 0
    try:
        return _run(args, toolchain)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.adreno", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)} (all)"
    )
    parser.add_argument("--update", action="store_true", help="write the golden figures")
    parser.add_argument("--reason", default="", help="with --update: why the change is right")
    parser.add_argument("--gpus", type=int, nargs="+", choices=GPUS, default=[GPUS[0]])
    parser.add_argument("--top", type=int, default=8, help="rows of each table (8)")
    args = parser.parse_args(arguments)
    for name in args.workloads:
        if name not in WORKLOADS:
            parser.error(f"{name}: expected one of {', '.join(WORKLOADS)}")
    if args.update != bool(args.reason.strip()):
        parser.error(
            "--update and --reason TEXT go together: the reason is kept beside the figures"
        )
    return args


def _run(args: argparse.Namespace, toolchain: Toolchain) -> int:
    began = time.monotonic()
    names = args.workloads or list(WORKLOADS)
    with ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), mp_context=get_context("spawn")
    ) as processes:
        workloads = dict(zip(names, processes.map(compiled, names), strict=True))
    wrong = 0
    totals: list[tuple[object, ...]] = []
    for gpu in args.gpus:
        sources = [
            source
            for workload in workloads.values()
            for manifest in workload.values()
            for source in kernel_sources(manifest).values()
        ]
        built = build(toolchain, sources, gpu, counted)
        for name, workload in workloads.items():
            costs = _costs(workload, built, gpu)
            totals.append(_total(name, costs))
            for line in failures_of(costs):
                print(f"{name}: {line}", file=sys.stderr)
                wrong += 1
            if gpu == GPUS[0]:
                wrong += _judge(name, costs, args)
    print(f"\n{format_table(_TOTALS, totals)}")
    print(f"\nfloors are without stalls, see docs/adreno.md; {time.monotonic() - began:.0f} s")
    if wrong:
        print(
            f"error: {count_text(wrong, 'kernel')} not as written down; if that is right: "
            "make adreno ADRENO_ARGS='--update --reason \"...\"'",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def _costs(workload: Workload, built: Mapping[Source, Built], gpu: int) -> dict[str, EntryCost]:
    return {
        name: entry_cost(
            manifest,
            next(iter(manifest["entries"])),
            kernel_sources(manifest),
            built,
            GPU_TABLE[gpu],
        )
        for name, manifest in workload.items()
    }


def _judge(name: str, costs: Mapping[str, EntryCost], args: argparse.Namespace) -> int:
    """Print the table of a workload and what differs; return how many kernels do."""
    if args.top and len(costs) == 1:
        (table, *_) = sections(next(iter(costs.values())))
        print(f"\n{name}: {table.title}\n{format_table(table.header, table.rows[: args.top])}")
    if args.update:
        if not failures_of(costs):
            write(name, costs, args.reason.strip())
        return 0
    differences = compare(read(name), costs)
    for difference in differences:
        print(f"{name}: {difference.line()}", file=sys.stderr)
    return len(differences)


_TOTALS = (
    *("workload", "GPU", "launches", "kernels", "floor ms", "MACs ms", "spills", "beyond cache"),
    "fewest waves",
)


def _total(name: str, costs: Mapping[str, EntryCost]) -> tuple[Any, ...]:
    kernels = [kernel for cost in costs.values() for kernel in cost.kernels]
    gpu = next(iter(costs.values())).gpu
    return (
        name,
        gpu.number,
        sum(cost.launches for cost in costs.values()),
        len(kernels),
        *([sum(cost.floor_ms for cost in costs.values()) if gpu.lanes else None]),
        *([sum(cost.mac_ms for cost in costs.values()) if gpu.lanes else None]),
        sum(kernel.spills > 0 for kernel in kernels),
        sum(kernel.beyond_cache for kernel in kernels),
        min((kernel.waves for kernel in kernels), default=0),
    )


if __name__ == "__main__":
    sys.exit(main())
