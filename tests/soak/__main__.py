"""``python -m tests.soak``: disturb a daemon for as long as told; exit code 1 if a promise broke.

The same seed gives the same faults at the same times.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.faults.world import running_world
from tests.session_cache import SESSION
from tests.soak.report import Facts, report
from tests.soak.run import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults-per-minute", type=float, default=7.0)
    parser.add_argument("--report", type=Path, default=Path("build/soak.md"))
    parser.add_argument("--undisturbed", action="store_true", help="no faults")
    parser.add_argument("--model", type=Path, help="an artifact for 1928x1208, with --undisturbed")
    parser.add_argument(
        "--slack",
        type=float,
        default=1.0,
        help="factor on the bounds, for machines with other work",
    )
    args = parser.parse_args()
    if args.model is not None and not args.undisturbed:
        parser.error("--model: only with --undisturbed, as faults are told by small models")
    per_minute = 0.0 if args.undisturbed else args.faults_per_minute
    name = "two small ones" if args.model is None else args.model.name
    try:
        with tempfile.TemporaryDirectory(prefix="soak") as directory:
            text, violations = _soak(Path(directory), args, per_minute, name)
    finally:
        SESSION.remove()
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(text, encoding="utf-8")
    print(f"{args.report}: {violations} violations", file=sys.stderr)
    return 1 if violations else 0


def _soak(
    directory: Path, args: argparse.Namespace, per_minute: float, name: str
) -> tuple[str, int]:
    model = args.model.resolve() if args.model is not None else None
    disturbed = not args.undisturbed
    with running_world(
        directory, fallback=disturbed, faulty=disturbed, restarts=True, model=model
    ) as world:
        world.wait_valid(timeout_s=60.0)
        world.service.wait_ready()
        watch = soak(world, args.seed, args.seconds, per_minute, args.slack)
        facts = Facts(args.seed, args.seconds, per_minute, name, args.slack)
        return report(watch, facts), len(watch.violations)


if __name__ == "__main__":
    # A shell's background job ignores SIGINT, and children would inherit that.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
