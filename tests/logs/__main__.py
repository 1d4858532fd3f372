"""Damages and kills logs: `python -m tests.logs`.

python -m tests.logs mutations --count 10000    damaged logs, read in full
python -m tests.logs kills --count 50           writers that are killed, and what they lost
"""

import argparse
import json
import tempfile
from pathlib import Path

from tests.logs import kills, mutate


def main() -> int:
    """Run what the command line names and print what came of it, one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m tests.logs", description=__doc__)
    parser.add_argument("what", choices=["mutations", "kills"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    function = {"mutations": mutate.run, "kills": kills.run}[args.what]
    with tempfile.TemporaryDirectory(prefix="modeld-logs-") as directory:
        found = function(args.count, args.seed, Path(directory))
    print(json.dumps(found))  # noqa: T201  # a command's output
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
