"""The stages of a run: each fills its part of the report, and is cut when its time is over."""

import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtime.own_process import own_command
from tests.gpu import plan
from tests.gpu.plan import Job
from tests.gpu.processes import CUT, ROOT, Running, modeld, run

_VERDICT: Final = re.compile(r"^(\S+::\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)", re.MULTILINE)
_FAILED: Final = ("FAILED", "ERROR")
PEERS: Final = ("onnxruntime", "torch")
POLL_S: Final = 0.1


@dataclass(slots=True)
class Run:
    """A run: where, on what, until when, and what it found."""

    directory: Path
    device: str | None
    target: str
    environment: Mapping[str, str]
    seconds: float
    workers: int
    say: Callable[[str], None]
    report: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def left(self, stage: str) -> float:
        return self.started + self.seconds * plan.SHARES[stage] - time.monotonic()

    def device_options(self) -> list[str]:
        return ["--device", self.device] if self.device else []


def doctor(state: Run) -> None:
    arguments = ["doctor", "--json", "--limit", f"{max(5.0, state.left('doctor') / 4):.0f}"]
    done = run(modeld(*arguments, *state.device_options()), state.environment, state.left("doctor"))
    state.report["doctor"] = done.json() or {"problem": done.problem}
    sections = state.report["doctor"].get("sections", [])
    verdicts = ", ".join(f"{s['name']} {s['verdict']}" for s in sections)
    state.say(f"doctor: {verdicts or done.problem}")


def models(state: Run) -> list[Job]:
    place = state.directory / "models"
    for words in (["--benchmarks"], ["--interface", plan.MONITORING_INTERFACE]):
        done = run(modeld("make-model", str(place), *words), state.environment, 120.0)
        if done.problem:
            state.say(f"make-model: {done.problem}")
    trained = ROOT / "tools" / "models"
    made = plan.jobs(place, trained if (trained / "vision.onnx").is_file() else None)
    return [job for job in made if all(path.is_file() for path in job.models)]


def compile_all(state: Run, made: Sequence[Job]) -> list[Job]:
    """Compile artifacts side by side, beside the tests of drivers; return those that are there."""
    state.report["artifacts"] = {job.title: {"state": "not reached"} for job in made}
    suite = Running(_suite_command(), {**state.environment, **_SUITE_ENVIRONMENT})
    waiting, running = list(made), dict[Job, Running]()
    compiled: list[Job] = []
    while (waiting or running) and state.left("compile") > 0:
        while waiting and len(running) < state.workers:
            job = waiting.pop(0)
            words = job.arguments(state.directory, state.target, state.device)
            running[job] = Running(modeld(*words, "--json"), state.environment)
        for job, process in list(running.items()):
            if process.ended or process.seconds > plan.COMPILE_S:
                del running[job]
                compiled += _take(state, job, process)
        time.sleep(POLL_S)
    for job, process in running.items():
        process.done(0.0)
        state.report["artifacts"][job.title]["state"] = "compiling was cut"
    _read_suite(state, suite)
    return sorted(compiled, key=made.index)


def _take(state: Run, job: Job, process: Running) -> list[Job]:
    done = process.done(0.0)
    row = state.report["artifacts"][job.title]
    row["compile_s"] = round(done.seconds, 1)
    row["state"] = f"does not compile: {done.problem}" if done.problem else "compiled"
    if done.problem:
        state.say(f"{job.title}: {row['state']}")
        return []
    return [job]


_SUITE_ENVIRONMENT: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _suite_command() -> list[str]:
    plugins = [f"-ppytest_{n}" for n in ("timeout",) if importlib.util.find_spec(f"pytest_{n}")]
    options = ["-v", "--no-header", "-p", "no:cacheprovider", "--durations=0", *plugins]
    return [sys.executable, "-m", "pytest", "tests/drivers", *options]


def _read_suite(state: Run, suite: Running) -> None:
    done = suite.done(max(0.0, state.left("compile")))
    verdicts = dict(_VERDICT.findall(done.output))
    failed = sorted(name for name, verdict in verdicts.items() if verdict in _FAILED)
    counts = {v.lower(): list(verdicts.values()).count(v) for v in sorted({*verdicts.values()})}
    state.report["drivers"] = {
        "counts": counts,
        "failed": failed,
        "seconds": round(done.seconds, 1),
        "problem": "" if done.code in (0, 1) else done.problem,
        "log": done.output[-4000:] if failed or done.code not in (0, 1) else "",
    }
    state.say(f"tests of drivers: {counts}, {done.problem or 'whole'}")


def measure(state: Run, compiled: Sequence[Job]) -> None:
    """Run the self-test of each artifact on the device, and time it."""
    for job in compiled:
        limit_s = min(plan.ARTIFACT_S, state.left("measure"))
        if limit_s <= 0:
            break
        words = [str(job.artifact(state.directory)), *state.device_options()]
        done = run(own_command("tests.gpu.measure", *words), state.environment, limit_s)
        row = state.report["artifacts"][job.title]
        found = done.json()
        row.update(found)
        row["state"] = "measured" if found else f"does not run: {done.problem}"
        if done.code == CUT and limit_s < plan.ARTIFACT_S:
            row["state"] = "the time was over"
        state.say(f"{job.title}: {_times(row)}")


def _times(row: Mapping[str, Any]) -> str:
    if "bench" not in row:
        return str(row["state"])
    verdict = "passed" if row["self_test"]["passed"] else "FAILED"
    return f"self-test {verdict}, {row['bench']['median_ms']:.3f} ms"


def tune(state: Run, compiled: Sequence[Job]) -> None:
    """Search the loops of some models, and run what came of it beside what was before."""
    state.report["tuned"] = {}
    here = [j for j in compiled if j.name in plan.TUNED and j.precision == "fp32"]
    for number, job in enumerate(here):
        left = state.left("tune") / (len(here) - number)
        # A third for the search, the rest to compile and to compare.
        seconds = min(plan.TUNE_S, left / 3)
        if seconds < 1.0:
            state.report["tuned"][job.title] = {"state": "not reached"}
            continue
        tuned = state.directory / f"{job.name}.tuned.pkl"
        words = ["compile", *map(str, job.models), "--plain", "-o", str(tuned), "--json"]
        words += ["--target", state.target, "--tune", f"{seconds:.0f}", *state.device_options()]
        done = run(modeld(*words), state.environment, left)
        row: dict[str, Any] = {"seconds": round(done.seconds, 1), "state": done.problem or "tuned"}
        if not done.problem:
            found = done.json()["tune"]
            row |= {name: found[name] for name in ("heuristic_ms", "best_ms")}
            row["choices"] = {k["kernel"]: k["choice"] for k in found["kernels"] if k["choice"]}
            pair = [str(tuned), str(job.artifact(state.directory)), *state.device_options()]
            beside = run(
                own_command("tests.gpu.measure", *pair), state.environment, left - done.seconds
            )
            row |= beside.json() or {"state": f"tuned, not compared: {beside.problem}"}
        state.report["tuned"][job.title] = row
        ratio = row.get("beside", {}).get("ratio")
        state.say(f"{job.title} tuned: {row['state'] if ratio is None else f'{ratio:.3f} of it'}")


def peers(state: Run, compiled: Sequence[Job]) -> None:
    """Run models beside onnxruntime and torch, on CUDA where they have that."""
    state.report["peers"] = {}
    here = [name for name in PEERS if importlib.util.find_spec(name) is not None]
    if not here:
        state.report["peers_problem"] = f"none of {', '.join(PEERS)} is installed"
        return
    for job in compiled:
        left = state.left("peers")
        if not job.plain or job.precision != "fp32" or left < 5.0:
            continue
        words = ["bench", "--against", ",".join(here), str(job.models[0]), "--blocks", "4"]
        words += ["--json", *state.device_options()]
        done = run(modeld(*words), state.environment, left)
        found = done.json()
        state.report["peers"][job.name] = found or {"problem": done.problem}
        ratios = {name: round(one["ratio"], 3) for name, one in found.get("peers", {}).items()}
        state.say(f"{job.name} beside {', '.join(here)}: {ratios or done.problem}")


def workers() -> int:
    """Return how many compilations run at once: the tests of drivers have a core, too."""
    return max(1, min(12, len(os.sched_getaffinity(0)) - 1))
