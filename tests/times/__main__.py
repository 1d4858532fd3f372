"""Prints where the time of the tests went, by cause and by file: `make test-times`.

It reads the directory that `pytest -p tests.times.plugin --times DIRECTORY` wrote. Seconds are
those of one process; workers run beside each other.

Examples:
    python -m tests.times build/times
    python -m tests.times build/times --files 40 --tests 20
"""

import argparse
import json
from collections import Counter
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times",
        description=(__doc__ or "").partition("\n\nExamples")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="what the plugin wrote")
    parser.add_argument("--files", type=int, default=15, help="how many files are shown")
    parser.add_argument("--tests", type=int, default=15, help="how many tests are shown")
    args = parser.parse_args()
    causes: Counter[str] = Counter()
    for path in args.directory.glob("causes-*.json"):
        for _, cause, seconds in json.loads(path.read_text(encoding="utf-8")):
            causes[cause] += seconds
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in args.directory.glob("tests-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            test, _, _, seconds = json.loads(line)
            tests[test] += seconds
            files[test.partition("::")[0]] += seconds
    if not causes or not tests:
        parser.error(f"{args.directory}: expected what a run of the tests wrote, found nothing")
    print(f"{len(tests)} tests in {len(files)} files")
    for title, counts, shown in (
        ("cause", causes, len(causes)),
        ("file", files, args.files),
        ("test", tests, args.tests),
    ):
        whole = counts.total()
        print(f"\n| {title} | s | share |\n|---|---|---|")
        for name, seconds in counts.most_common(shown):
            print(f"| {name} | {seconds:.0f} | {100 * seconds / whole:.0f} % |")


if __name__ == "__main__":
    main()
