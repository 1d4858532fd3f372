"""``python -m tests.acceptance``: drives as often as is promised of the model; 1 if it is not kept.

Each run is the command that a user would give. Its figures, its page and a line for each drive lie
in the directory as soon as they are there; the tables are made of all figures that lie there, so
that runs may be done one by one.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runtime.files.user_file import whole_file
from runtime.format.artifact import read_artifact
from tests.acceptance.page import Done, markdown, page
from tests.acceptance.plan import RANDOM_INTERFACE, Run, Sizes, chosen, runs_of
from tools.lib.json_output import json_text

_RESULT_CODES = (0, 1)


def main() -> int:
    args = _arguments()
    sizes = replace(Sizes(), **{one.name: getattr(args, one.name) for one in fields(Sizes)})
    runs = runs_of(sizes)
    directory: Path = args.directory
    directory.mkdir(parents=True, exist_ok=True)
    try:
        wanted = chosen(runs, args.runs)
        models = {"trained": args.model, "random": directory / "random/driving.pkl", "": None}
        if any(run.model == "random" for run in wanted):
            _make_random(directory / "random")
        driven = {run.name for run in wanted if _drive(run, models[run.model], directory)}
    except ValueError as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 2
    sha256 = read_artifact(args.model).sha256
    done = [one for one in (result_of(run, directory, sha256) for run in runs) if one is not None]
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "model": f"artifact with SHA-256 {sha256}",
        **_machine(),
    }
    (directory / "table.md").write_text(markdown(done, facts), encoding="utf-8")
    (directory / "report.html").write_text(page(done, facts), encoding="utf-8")
    for one in done:
        said = "as it must" if one.passed else "NOT as it must"
        print(f"{one.run.name}: {said}, {one.result.get('wall_s', 0.0):.0f} s", file=sys.stderr)
    print(f"{directory}/report.html, {directory}/table.md", file=sys.stderr)
    passed = driven & {one.run.name for one in done if one.passed}
    return 0 if all(run.name in passed for run in wanted) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="some of the runs (all)")
    parser.add_argument("--model", type=Path, default=Path("build/drives/driving.pkl"))
    parser.add_argument("--directory", type=Path, default=Path("build/drives"))
    for one in fields(Sizes):
        kind = float if one.name.endswith("km") or one.name == "rate_hz" else int
        option = f"--{one.name.replace('_', '-')}"
        parser.add_argument(option, type=kind, default=one.default)
    return parser.parse_args()


def _modeld(arguments: list[str], **more: Any) -> tuple[int, bytes | None]:
    command = [sys.executable, "-m", "tools.cli", *arguments]
    print(f"modeld {' '.join(arguments)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, check=False, **more)
    return done.returncode, done.stdout


def _make_random(directory: Path) -> None:
    artifact = directory / "driving.pkl"
    files = [str(directory / f"{role}.onnx") for role in ("vision", "policy")]
    made = ["make-model", str(directory), "--interface", RANDOM_INTERFACE]
    for arguments in (made, ["compile", *files, "-o", str(artifact), "--target", "cpu"]):
        if _modeld(arguments, stdout=subprocess.DEVNULL)[0] != 0:
            raise ValueError(f"{artifact}: expected an artifact, found the error above")


def _drive(run: Run, model: Path | None, directory: Path) -> bool:
    """Run one command and keep what it prints; tell whether there are figures."""
    files = [("lines", "jsonl"), *([] if run.name == "faults" else [("report", "html")])]
    arguments = ["drive", *run.options, "--json"]
    arguments += [] if model is None else ["--model", str(model)]
    arguments += [] if run.gates is None else ["--gates", str(run.gates)]
    for option, ending in files:
        arguments += [f"--{option}", str(directory / f"{run.name}.{ending}")]
    start_s = time.perf_counter()
    code, printed = _modeld(arguments, stdout=subprocess.PIPE)
    took_s = time.perf_counter() - start_s
    if code not in _RESULT_CODES or not printed:
        print(f"{run.name}: no figures, exit code {code}; see above", file=sys.stderr, flush=True)
        return False
    # Sizes may be others when the tables are made.
    result = {"command": f"modeld drive {' '.join(run.options)}", **json.loads(printed)}
    with whole_file(directory / f"{run.name}.json") as file:
        file.write(json_text(result).encode())
    print(f"{run.name}: {took_s:.0f} s", file=sys.stderr, flush=True)
    return True


def result_of(run: Run, directory: Path, sha256: str) -> Done | None:
    """Return what came of a run; None: it was not done, or with another trained model."""
    path = directory / f"{run.name}.json"
    if not path.exists():
        return None
    result = json.loads(path.read_text("utf-8"))
    if run.model == "trained" and result.get("sha256") != sha256:
        return None
    kept = all(gate["holds"] for gate in result.get("gates", ()))
    return Done(run, result, kept is not run.fails)


def _machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    name = next((line for line in lines if line.startswith("model name")), platform.machine())
    return {"processor": name.partition(":")[2].strip() or name}


if __name__ == "__main__":
    sys.exit(main())
