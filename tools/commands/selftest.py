"""``modeld selftest``: run the self-test that an artifact carries, on a device of this machine.

Example::

    modeld selftest driving.pkl
    modeld selftest driving.pkl --device gpu --json

``modeld compile`` adds the self-test: seeds of random inputs and the model's outputs for them,
computed without a device. The daemon runs it whenever it loads an artifact.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.lib.json_output import print_json
from tools.lib.terminal import format_table

if TYPE_CHECKING:
    import argparse

    from runtime import SelfTestReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("artifact", type=Path, help="artifact")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")


def run(args: argparse.Namespace) -> int:
    """Run the self-test and print its report; return 1 if it fails, else 0.

    Raises:
        RuntimeFault: the artifact or the device cannot be used.
    """
    from runtime import load_program
    from runtime.run.selftest import ADVICE, run_self_test

    with load_program(args.artifact, args.device) as program:
        report = run_self_test(program)
    if args.json:
        print_json(report.plain())
    else:
        _print(report, args.artifact.name)
        if not report.passed:
            print(ADVICE)
    return 0 if report.passed else 1


def _print(report: SelfTestReport, file: str) -> None:
    print(f"{file} on {report.device}: {report}")
    if not report.runs:
        print(
            "the artifact has no self-test; modeld compile adds one unless --no-selftest is given"
        )
        return
    rows = [
        (
            *(d.entry, d.seed, d.kind, d.name, d.values, d.beyond),
            *(f"{d.deviation:.1e}", f"{d.tolerance:.0e}"),
        )
        for d in report.deviations
    ]
    header = ("entry", "seed", "of", "name", "values", "beyond", "deviation", "tolerance")
    print(format_table(header, rows))
    if report.worst is not None:
        print(f"largest: {report.worst}")
