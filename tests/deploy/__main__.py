"""Follows docs/deploy.md and docs/beside-openpilot.md, and asks the service what it promises.

    python -m tests.deploy --model driving.pkl [--root DIRECTORY] [--harness] [--first]

This is `make test-deploy`. In a bare Debian with systemd where debootstrap, systemd-nspawn and root
are there; else, or with --harness, the first page alone, in a directory, with a process that does
what systemd does of the protocol. The first line says which of both it is.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.deploy import beside
from tests.deploy.checks import Arrivals, Checks
from tests.deploy.container import Container
from tests.deploy.harness import Harness
from tests.deploy.machine import DeployError, Machine, UnavailableError, checked
from tests.deploy.page import Step, steps

ROOT = Path(__file__).parent.parent.parent
# Not 127.0.0.1, where another daemon of this machine may be.
BUS = "tcp://127.0.84.1"
# Behind these the service runs; what stands under later headings is run after the checks.
CHECKED_BEFORE = "Update"
# The one command that reads no configuration.
_STATUS = "bin/modeld status"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all went well, 1 otherwise, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, required=True, help="driving artifact")
    parser.add_argument(
        "--root", type=Path, default=ROOT / "build/deploy/debian", help="bare Debian, kept"
    )
    parser.add_argument("--harness", action="store_true", help="without systemd")
    parser.add_argument("--first", action="store_true", help="docs/deploy.md alone")
    args = parser.parse_args(arguments)
    if not args.model.is_file():
        parser.error(f"--model: expected an artifact, found none at {args.model}")
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deploy-")))
            machine = _machine(args, scratch)
            stack.callback(machine.close)
            follow(machine, args.model, scratch, stack)
            if isinstance(machine, Container) and not args.first:
                beside.follow(machine, scratch, started)
            else:
                print("docs/beside-openpilot.md: left to pytest tests/deploy")
    except DeployError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(f"all of it holds, {time.monotonic() - started:.0f} s")
    return 0


def _machine(args: argparse.Namespace, scratch: Path) -> Machine:
    if not args.harness:
        try:
            return _said(Container(args.root))
        except UnavailableError as reason:
            print(f"no container here: {reason}")
    return _said(Harness(scratch / "machine"))


def _said(machine: Machine) -> Machine:
    print(f"docs/deploy.md in {machine.what}", flush=True)
    return machine


def follow(machine: Machine, model: Path, scratch: Path, stack: ExitStack) -> None:
    """Follow the page, and check the service where it runs."""
    wheel = build_wheel(scratch)
    machine.put(wheel, wheel.name)
    machine.put(model, "driving.pkl")
    machine.put(Path(__file__).parent / "listen.py", "listen.py")
    output = scratch / "arrivals.txt"
    checks: Checks | None = None
    is_prepared = False
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - started:5.1f} s  {text}", flush=True)

    try:
        for step in steps():
            if not machine.takes(step):
                continue
            if step.section == CHECKED_BEFORE and checks is None:
                listener = machine.python("listen.py", BUS, output=output)
                stack.callback(listener.wait)
                stack.callback(listener.kill)
                checks = Checks(machine, Arrivals(output), say)
                checks.all()
            say(f"$ {step.command.splitlines()[0]}")
            machine.follow(_on_our_bus(step))
            if "install-unit" in step.command and not is_prepared:
                is_prepared = True
                machine.prepare(BUS)
        assert checks is not None, f"no commands under the heading {CHECKED_BEFORE}"
        checks.publishes()
        checks.stops()
    except DeployError:
        print(machine.journal()[-6000:], file=sys.stderr)
        raise


def _on_our_bus(step: Step) -> Step:
    """Return the step with an option for the bus, where the command reads no configuration."""
    return replace(step, command=step.command.replace(_STATUS, f"{_STATUS} --bus {BUS}"))


def build_wheel(directory: Path) -> Path:
    checked(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(directory), str(ROOT)]
    )
    return next(directory.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
