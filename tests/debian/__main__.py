"""Tests in a Debian of another processor or with another Python.

    python -m tests.debian aarch64 [--quick] [STAGE ...]     make test-aarch64
    python -m tests.debian python [STAGE ...]                make test-python

The first runs the product on aarch64: the driver, files that this machine compiled, tests, the
daemon; on a machine of x86-64 through qemu. The second runs the quick tests with the Python of
Debian 13. One line each. Exit code 1 if something failed, with the end of its output, 2 for wrong
arguments, 3 where this machine cannot do it.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.debian.place import Place, Say, place
from tests.debian.place_error import PlaceError
from tests.debian.plans import PLANS, Plan
from tests.debian.stages import Stage, StageError
from tests.debian.wheels import ROOT
from tools.errors import PackagesError

# Most of a stage is one process; each begins in the order of the plan.
_LANES: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.debian", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="some stages (default: all)")
    parser.add_argument("--quick", action="store_true", help="the stages of the reduced run")
    parser.add_argument("--list", action="store_true", help="name the stages and stop")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / "build/debian", help="where places are kept"
    )
    args = parser.parse_intermixed_args(arguments)
    plan = PLANS[args.plan]()
    if args.list:
        for stage in plan.stages.values():
            print(f"{stage.name:12} {stage.what}{', also with --quick' if stage.is_quick else ''}")
        return 0
    unknown = sorted(set(args.stages) - set(plan.stages))
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(plan.stages)}")
    chosen = [plan.stages[name] for name in args.stages] or [
        stage for stage in plan.stages.values() if stage.is_quick or not args.quick
    ]
    try:
        return 0 if run(plan, chosen, args.directory) else 1
    except (PlaceError, PackagesError) as error:
        print(f"{args.plan}: {error}", file=sys.stderr)
        return error.exit_code


def run(plan: Plan, chosen: Sequence[Stage], directory: Path) -> bool:
    """Make the place and run stages in it, two at a time; return whether all hold."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    with (
        place(
            plan.machine,
            debian_packages=plan.debian,
            requirements=plan.pypi,
            directory=directory.absolute(),
            say=say,
        ) as made,
        ThreadPoolExecutor(_LANES) as lanes,
    ):
        say(f"in {made.what}; everything printed is in {made.logs}")
        running: dict[str, Future[bool]] = {}
        for stage in chosen:
            before = running.get(stage.after)
            running[stage.name] = lanes.submit(_run_stage, stage, made, say, before)
        held = [one.result() for one in running.values()]
    say(f"{sum(held)} of {len(held)} stages hold")
    return all(held)


def _run_stage(stage: Stage, made: Place, say: Say, before: Future[bool] | None) -> bool:
    """Run one stage when the one that it waits for is over; return whether it holds."""
    if before is not None:
        before.result()
    began = time.monotonic()
    try:
        found = stage.run(made.logged(stage.name), say)
    except StageError as error:
        print(f"{stage.name}: {error}", file=sys.stderr)
        found = "FAILED"
    say(f"{stage.name}: {found} ({time.monotonic() - began:.0f} s)")
    return found != "FAILED"


if __name__ == "__main__":
    sys.exit(main())
