"""Runs the tests that a change can make fail: `python -m tests.changed [--since COMMIT]`.

What changed is what git finds different from a commit, the last one unless told otherwise, with
files that are new. The test files are listed with the way that leads there; options of pytest stand
after `--`.

Examples:
    python -m tests.changed
    python -m tests.changed --since origin/main -- -n 2 -m ''
    python -m tests.changed --list cereal/log.capnp
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.changed.graph import read_graph

ROOT = Path(__file__).parents[2]


def git(*arguments: str, root: Path = ROOT) -> list[str]:
    """Return the file names that a command of git lists."""
    done = subprocess.run(
        ["git", *arguments, "-z"],  # noqa: S607 - whichever git the developer uses
        cwd=root, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"git {arguments[0]}: {os.fsdecode(done.stderr).strip()}")
    return [name for name in os.fsdecode(done.stdout).split("\0") if name]


def main(arguments: list[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own_arguments, options_of_pytest = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m tests.changed",
        description=(__doc__ or "").partition("\n\nExamples")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--since", metavar="COMMIT", default="HEAD", help="default: the last one")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("files", nargs="*", help="these changed, whatever git says")
    args = parser.parse_args(own_arguments)
    listed = git("ls-files", "--cached", "--others", "--exclude-standard")
    files = [file for file in listed if (ROOT / file).is_file()]
    changed = args.files or [
        *git("diff", "--name-only", args.since),
        *git("ls-files", "--others", "--exclude-standard"),
    ]
    tests = read_graph(ROOT, files).tests_of(changed)
    print(f"{len(changed)} files changed, {len(tests)} test files reached")
    for test, way in tests.items():
        print(f"  {test:60}  {way if way != test else 'changed'}")
    if args.list or not tests:
        return 0
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options_of_pytest, *tests], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
