"""Search the kernels of models and add what is faster to the table that ships with the package.

    python -m benchmarks.tune_models build/bench-models/resnet18.onnx --seconds 120
    python -m benchmarks.tune_models --driving vision.onnx policy.onnx --seconds 120

Files with `--driving` are compiled as the driving program. What was searched before on this
device is taken from the cache directory: another run goes on where one stopped. Entries that were
measured against other loops than the heuristic has now are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from runtime.opencl.device import Device, choose_device
from scheduler.compile import compile_driving, compile_plain
from scheduler.context import CompileContext
from scheduler.device import tuned_table
from scheduler.device.targets import target_for
from scheduler.device.tuned_table import Entry, TunedTable
from scheduler.schedule_cache import EntryGraph
from scheduler.tuning.tune import tune
from scheduler.tuning.variants import jobs_of
from tools.describe.compilation import describe_tuning


class Shipper:
    """Tunes the entries of a compilation and puts what is known of them into the shipped table."""

    def __init__(self, device: Device, seconds: float) -> None:
        self.device, self.seconds = device, seconds

    def __call__(self, graphs: Mapping[str, EntryGraph], context: CompileContext) -> TunedTable:
        """Return the table of the device; called by the compiler."""
        target, info = context.spec.target, self.device.info
        if self.seconds > 0:
            print(describe_tuning(tune(graphs.values(), context, self.device, self.seconds)))
        table = tuned_table.table_for(target, info.name, info.driver)
        found: dict[str, Entry] = {}
        for job in jobs_of(graphs.values(), context):
            entry = table.entries.get(job.key)
            if entry is not None and entry.was == job.was:
                found[job.key] = entry
        shipped = tuned_table.shipped_table(target).entries
        path = tuned_table.SHIPPED / f"{target}.json"
        whole = TunedTable(target, info.name, info.driver, {**shipped, **found})
        tuned_table.write_table(path, whole)
        path.parent.chmod(0o755)  # package data, not a private cache
        path.chmod(0o644)
        tuned_table.shipped_table.cache_clear()
        better = sum(not e.choice.is_heuristic for e in found.values())
        print(f"{path}: {len(found)} kernels of this model, {better} other than the heuristic's")
        return table


def main() -> int:
    """Tune what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--driving", action="store_true", help="vision and policy as one program")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="per model; 0 only takes what is known"
    )
    args = parser.parse_args()
    device, target = choose_device("cpu"), target_for("auto", "cpu")
    shipper = Shipper(device, args.seconds)
    if args.driving:
        compile_driving(args.models, target=target, tables=shipper)
        return 0
    for model in args.models:
        print(model)
        compile_plain(model, target=target, tables=shipper)
    return 0


if __name__ == "__main__":
    sys.exit(main())
