"""Self-test and times of an artifact, also beside another one: a process of its own.

python -m tests.gpu.measure ARTIFACT [OTHER] [--device D]       one JSON object
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import runtime
from runtime.run.selftest import run_self_test
from tools.bench import paced as bench_paced
from tools.lib.json_output import print_json
from tools.timing.program_inputs import make_inputs
from tools.timing.run_times import FRAMES, compare, measure, measure_rounds

# Runs back to back, and after each pause: fewer where they would take longer than so many seconds.
ITERATIONS: Final = 50
PACED_RUNS: Final = 20
LONGEST_S: Final = 6.0
LEAST_RUNS: Final = 5
ROUNDS: Final = 6


def main() -> int:
    """Measure and print; 1 if a self-test fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--device")
    args = parser.parse_args()
    device = runtime.choose_device(args.device)
    with ExitStack() as stack:
        programs = [
            stack.enter_context(runtime.load_program(p, device)) for p in args.artifacts[:2]
        ]
        tests = [run_self_test(program) for program in programs]
        first = programs[0]
        entry = first.entries[0]
        inputs = make_inputs(first.entry_inputs(entry), 0)
        found: dict[str, Any] = {
            "device": first.stats.device,
            "self_test": {
                "passed": all(test.passed for test in tests),
                "runs": tests[0].runs,
                "text": "; ".join(map(str, tests)),
                "worst": str(tests[0].worst) if tests[0].worst is not None else "",
            },
        }
        fitting = int(LONGEST_S * 1e3 / measure(first, inputs, entry, 1, warm_up=1)["median_ms"])
        if len(programs) == 1:
            runs = max(LEAST_RUNS, min(ITERATIONS, fitting))
            paced = max(LEAST_RUNS, min(PACED_RUNS, fitting // len(bench_paced.PAUSES_MS)))
            found["bench"] = measure(first, inputs, entry, runs)
            found["paced"] = bench_paced.measure(first, inputs, entry, paced)
        else:
            both = {
                "ours": lambda: programs[0].run(inputs, entry),
                "theirs": lambda: programs[1].run(inputs, entry),
            }
            frames = max(LEAST_RUNS, min(FRAMES, fitting // ROUNDS))
            blocks = measure_rounds(both, ROUNDS, frames)
            found["beside"] = asdict(compare(blocks["ours"], blocks["theirs"]))
    print_json(found)
    return 0 if found["self_test"]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
