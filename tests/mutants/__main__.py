"""Plants small faults and prints which share of them the tests catch: `make mutants`.

The faults are drawn from a seed, as many of each package. The quick tests run once over a copy of
the tree with probes, which tells what tests reach each fault; then one fault after another is
planted in copies of the tree, and the tests that reach it run until one fails: the quick ones
first, then the slow ones whose imports lead to it. What was found stays in the directory, and a
second run goes on where the first was ended.

Examples:
    python -m tests.mutants --list
    python -m tests.mutants --count 120 --seed 1 --workers 2
    python -m tests.mutants --only modeld --limit-s 300
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue

from tests.changed.__main__ import git
from tests.changed.graph import read_graph
from tests.mutants.faults import Fault, draw
from tests.mutants.plant import Result, judge, ordered
from tests.mutants.reach import Suite, copy_tree, place_probes, read_suite, run_suite
from tests.mutants.table import table

ROOT = Path(__file__).parents[2]
# What `make test` runs.
COMMANDS = (
    ("-n", "2", "--dist", "loadfile", "-m", "not slow and not alone"),
    ("-m", "not slow and alone"),
)
# A slow test is taken to need as long, since they are run for the few faults that are left only.
SLOW_S = 5.0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=(__doc__ or "").partition("\n\nExamples")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=120, help="faults in all (default: 120)")
    parser.add_argument("--seed", type=int, default=1, help="they are drawn from (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="trees at a time (default: 2)")
    parser.add_argument("--limit-s", type=float, default=300.0, help="of one fault (default: 300)")
    parser.add_argument("--only", metavar="PACKAGE", default="", help="faults below this folder")
    parser.add_argument("--directory", type=Path, default=ROOT / "build/mutants")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument("--list", action="store_true", help="show the faults, run nothing")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Draw, run, print. Returns 0 whatever share was caught: the table is read."""
    args = parse(arguments)
    tree: Path = args.tree.resolve()
    faults = draw(tree, args.count, args.seed)
    chosen = [n for n, fault in enumerate(faults) if fault.file.startswith(args.only)]
    if args.list:
        for n in chosen:
            fault = faults[n]
            print(n, fault.kind, fault.shown((tree / fault.file).read_text(encoding="utf-8")))
        return 0
    directory: Path = args.directory.resolve()
    times = directory / "suite"
    if not (times / "finished").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        probed = copy_tree(tree, directory / "probes")
        place_probes(probed, faults)
        run_suite(probed, times, COMMANDS)
        (times / "finished").touch()
    run = Run(args, tree, read_suite(times))
    run.judge({number: faults[number] for number in chosen})
    print(table(tree, faults, {n: run.results[n] for n in chosen}, run.quick))
    return 0


def slow_tests(tree: Path) -> frozenset[str]:
    python = str(tree / ".venv/bin/python")
    command = [python, "-m", "pytest", "-q", "--collect-only", "-m", "slow"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


class Run:
    """Plants faults in trees of its own, several at a time, and keeps what came of each."""

    def __init__(self, args: argparse.Namespace, tree: Path, suite: Suite) -> None:
        self.slow = slow_tests(tree)
        seconds = {test: suite.seconds.get(test, SLOW_S) for test in self.slow}
        self.args, self.suite = args, replace(suite, seconds=suite.seconds | seconds)
        self.log = args.directory / "results.jsonl"
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        rows = [json.loads(line) for line in lines]
        self.results = {row["number"]: Result(**row) for row in rows}
        files = [file for file in git("ls-files", root=tree) if (tree / file).is_file()]
        self._graph = read_graph(tree, files)
        self._trees: Queue[Path] = Queue()
        for number in range(args.workers):
            place = args.directory / f"tree-{number}"
            shutil.rmtree(place, ignore_errors=True)
            self._trees.put(copy_tree(tree, place))

    @property
    def quick(self) -> frozenset[int]:
        results = self.results.items()
        return frozenset(n for n, r in results if r.verdict == "caught" and r.by not in self.slow)

    def judge(self, faults: Mapping[int, Fault]) -> None:
        """Judge those of the faults that are not judged yet."""
        with ThreadPoolExecutor(self.args.workers) as pool:
            list(pool.map(self._judge, *zip(*faults.items(), strict=True)))

    def _judge(self, number: int, fault: Fault) -> None:
        if number in self.results:
            return
        reaching = self._reaching(number, fault)
        tree = self._trees.get()
        try:
            result = Result(number, "unreached", "", 0, 0.0)
            for some in (reaching - self.slow, reaching & self.slow):
                if some and result.verdict != "caught":
                    tests = ordered(fault, some, self.suite.seconds)
                    found = judge(tree, number, fault, tests, self.suite, self.args.limit_s)
                    result = replace(
                        found,
                        tests=result.tests + found.tests,
                        seconds=result.seconds + found.seconds,
                    )
        finally:
            self._trees.put(tree)
        self.results[number] = result
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result.row()) + "\n")
        place = f"{fault.file}:{fault.line}"
        print(f"{result.verdict:10} {result.seconds:6.1f} s  {place}  {result.by}", flush=True)

    def _reaching(self, number: int, fault: Fault) -> set[str]:
        by_import = fault.statement is None or number in self.suite.imported
        tests = self.suite.seconds if by_import else self.slow
        files = set(self._graph.tests_of([fault.file]))
        importing = {test for test in tests if test.partition("::")[0] in files}
        return self.suite.reaching.get(number, set()) | importing


if __name__ == "__main__":
    sys.exit(main())
