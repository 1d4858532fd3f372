"""Runs tests under forced conditions: other processors, one core, little memory, odd places.

    python -m tests.conditions               reduced: files chosen for each condition
    python -m tests.conditions NAME ...      some conditions; --list names them
    python -m tests.conditions --full        the whole suite under each
    python -m tests.conditions --sample 5    one of five, which the text after --sample-seed decides

For each condition it is first proved that it is in force (`proofs`): a condition that did not take
effect is a failure. One line each; exit code 1 if any failed, with the end of its output.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from tests.conditions.forced import CONDITIONS, Condition, Place, Setting, Unavailable

ROOT = Path(__file__).parent.parent.parent
SHOWN_LINES = 60
# Set for the tests by their own configuration, or by a condition; never by who runs this.
NOT_INHERITED = ("MODELD_CACHE_DIR", "MODELD_POCL_CPU", "MODELD_TEST_SESSION", "POCL_CACHE_DIR")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conditions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help="conditions (default: all)")
    parser.add_argument("--list", action="store_true", help="name the conditions and stop")
    parser.add_argument("--full", action="store_true", help="the whole suite under each condition")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one of N of them")
    parser.add_argument("--sample-seed", default="1", help="which ones, a text (default: 1)")
    asked = parser.parse_args(arguments)
    if asked.list:
        for condition in CONDITIONS.values():
            print(f"{condition.name:16} {condition.what}")
        return 0
    unknown = sorted(set(asked.names) - set(CONDITIONS))
    if unknown:
        parser.error(f"no condition {', '.join(unknown)}; there are {', '.join(CONDITIONS)}")
    chosen = [CONDITIONS[name] for name in asked.names or CONDITIONS]
    chosen = chosen[crc32(asked.sample_seed.encode()) % asked.sample :: asked.sample]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="modeld-conditions-") as directory:
        place = Path(directory)
        failed = [c.name for c in chosen if not report(c, place, full=asked.full)]
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} conditions hold, "
        f"{time.perf_counter() - started:.0f} s"
    )
    return 1 if failed else 0


def report(condition: Condition, directory: Path, *, full: bool) -> bool:
    """Run one condition and print its line; return whether it holds."""
    started = time.perf_counter()
    own = directory / condition.name
    own.mkdir()
    print(f"{condition.name:16} ", end="", flush=True)
    try:
        setting = condition.prepare(Place(ROOT, own, directory / "kernels"))
    except Unavailable as reason:
        print(f"not here: {reason}")
        return True
    ok, in_force, log = run(condition, setting, full=full)
    seconds = time.perf_counter() - started
    print(f"{'holds ' if ok else 'FAILED'} {seconds:4.0f} s  {in_force}", flush=True)
    if not ok:
        for line in log.splitlines()[-SHOWN_LINES:]:
            print(f"    {line}")
    return ok


def run(condition: Condition, setting: Setting, *, full: bool) -> tuple[bool, str, str]:
    """Prove the condition, then run its tests; return success, what is in force, and the output."""
    proof = inside(setting, "-m", "tests.conditions.proofs", condition.name)
    in_force = proof.stdout.strip().splitlines()[-1] if proof.stdout.strip() else ""
    if proof.returncode != 0:
        return False, "not in force, or compiling fails", proof.stdout + proof.stderr
    tests = [] if full else list(condition.tests)
    if not (full or tests) or not setting.tests:
        return True, in_force, ""
    passes = (["-m", "not alone"], ["-m", "alone"]) if full else ([],)
    for marks in passes:
        result = inside(setting, "-m", "pytest", "-p", "no:cacheprovider", *marks, *tests)
        in_force += f"; {summary(result.stdout)}"
        if result.returncode != 0:
            log = f"{result.stdout}{result.stderr}\npytest ended with {result.returncode}"
            return False, in_force, log
    return True, in_force, ""


def summary(output: str) -> str:
    """Return pytest's last line, without its ruler."""
    last = (output.strip().splitlines() or [""])[-1].strip("= ")
    return last if " in " in last else "pytest did not end"


def inside(setting: Setting, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter as the condition says; what it prints need not be UTF-8."""
    environment = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
    for name, value in {"PYTHONDONTWRITEBYTECODE": "1", **setting.environment}.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=setting.root,
        env=environment,
        preexec_fn=setting.enter,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
