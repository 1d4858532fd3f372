"""Drive a simulated car with a model in closed loop, and measure how well, in metres.

A car with delays and limits follows modelV2.action on roads made from seeds, rendered for two
cameras. Without --live the daemon's own code runs in this process, with a simulated clock, as fast
as the device allows: two runs give the same results. With --live the daemon process runs on a real
bus with real frame rings, in real time; the car moves on whether the daemon answers or not.

An offset is the distance of the camera from the centre of its lane. A departure means that a side
of the car crosses the border of its lane. An expert drives for the first 5 s to fill the model's
history. The set speed is the road's limit; the model knows nothing else about the car. The exit
code is 1 if a drive has a departure, does not recover or does not finish; with gates, if one of
them fails. Gates name the metrics that --json prints. Each finished drive is reported in a line on
stderr; --lines keeps its results. --workers drives in several processes, with identical results.

--expert drives with knowledge of the road, to show the best possible metrics. --fault plants a
fault between simulation and daemon, and compares the result with drives without the fault; --fault
all plants each fault in turn.

Example:
  modeld drive --model driving.pkl --seed 3 --report drive.html
  modeld drive --model driving.pkl --scenario recovery --drives 200 --workers 2 --json
  modeld drive --model driving.pkl --drives 20 --gate 'offset_p99_m <= 0.7'
  modeld drive --model driving.pkl --live --km 1 --log drive.rlog.zst
  modeld drive --model driving.pkl --live --bus ipc:///tmp/drive --camera-server drive
  modeld drive --model driving.pkl --fault all
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from cereal.log_writer import LogWriter
from runtime.texts import count_text
from tools.behaviour.describe import gate_lines
from tools.behaviour.gates import Gate, add_gates, parse_gates
from tools.lib.json_output import print_json
from tools.lib.options import above, real, refuse, seed, whole
from tools.lib.terminal import format_table
from tools.playback.model import check_frame, load_model, read_driving_artifact
from tools.report.history import add_history, note_run
from tools.simulator.closed_loop.daemon_driver import ignore
from tools.simulator.closed_loop.device import cropped_cameras, device_cameras, formats
from tools.simulator.closed_loop.faults import FAULTS, Fault
from tools.simulator.closed_loop.live import FULL_RATE_HZ, LiveOptions, live_drives, live_facts
from tools.simulator.closed_loop.report import write_drive_report
from tools.simulator.closed_loop.result import (
    Drive,
    OnDrive,
    Outcome,
    drive_reporter,
    row_of,
    table_header,
    table_of,
)
from tools.simulator.closed_loop.run import (
    DaemonDrivers,
    Selection,
    drive_all,
    drive_in_processes,
    expert_drives,
    gate_names,
    judge_outcome,
    scenarios_named,
)
from tools.simulator.closed_loop.trial import SCENARIOS

# The longest road that is kept in memory for one drive.
MOST_KM = 100.0

RULES = (
    ("workers live|expert|log", "expected no {1}, found both; leave one out"),
    ("model expert", "expected an artifact or --expert, found both; name one"),
    ("!model !expert", "expected an artifact or --expert, found neither; name one"),
    ("bus|camera_server|rate_hz !live", "expected --live with it, found none; add --live"),
    ("live expert|fault", "expected no {1}, found both; leave one out"),
    ("history fault", "expected no --fault with it, found both; leave one out"),
    (
        "fault expert|log|report|gates",
        "expected a model, no --log, no --report and no gates; leave them out",
    ),
    ("log expert", "expected a model, found --expert, which publishes nothing"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", type=Path, metavar="PKL", help="driving artifact")
    parser.add_argument("--expert", action="store_true", help="drive with knowledge of the road")
    parser.add_argument("--seed", type=seed(), default=0, help="seed of the first drive (0)")
    parser.add_argument(
        "--drives",
        type=whole("--drives"),
        default=1,
        metavar="N",
        help="drives per scenario, one seed each (1)",
    )
    parser.add_argument(
        "--km",
        type=above("--km", 0, MOST_KM),
        help="length of each drive (2, or the scenario's)",
    )
    parser.add_argument(
        "--scenario",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"{', '.join(SCENARIOS)}, or all (lane-keeping)",
    )
    parser.add_argument("--live", action="store_true", help="use the daemon process, in real time")
    parser.add_argument(
        "--bus", metavar="ADDRESS", help="with --live: tcp://HOST or ipc:///DIRECTORY (private)"
    )
    parser.add_argument(
        "--camera-server",
        metavar="NAME",
        help="with --live: name of the frame rings (private)",
    )
    parser.add_argument(
        "--rate-hz",
        type=real("--rate-hz", 0.5, FULL_RATE_HZ),
        help="with --live: frames per second; less is slow motion (20)",
    )
    parser.add_argument(
        "--fault", choices=[*FAULTS, "all"], metavar="NAME", help=f"{', '.join(FAULTS)}, or all"
    )
    parser.add_argument("--log", type=Path, metavar="LOG", help="also write an event log")
    parser.add_argument("--report", type=Path, metavar="HTML", help="also write a one-page report")
    parser.add_argument(
        "--lines",
        type=Path,
        metavar="FILE",
        help="also write a line of JSON for each drive as soon as it finishes",
    )
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument(
        "--workers",
        type=whole("--workers"),
        default=1,
        metavar="N",
        help="number of processes, without --live (1)",
    )
    add_history(parser)
    group = parser.add_argument_group("gates, instead of clean drives")
    add_gates(group, "offset_p99_m <= 0.7")


def run(args: argparse.Namespace) -> int:
    """Run the drives; return 1 if a gate fails or, without gates, if a drive is not clean."""
    selection = _selection(args)
    gates = parse_gates(args.gate, args.gates, gate_names(selection))
    _check(args, gates)
    count = len(selection.requests()) * (1 if args.fault is None else 1 + len(_faults(args)))
    with drive_reporter(count, args.lines, show=not args.quiet) as report:
        if args.fault is not None:
            return _run_faults(args, selection, report)
        outcome = _drive(args, selection, report)
    verdicts = judge_outcome(outcome, gates)
    note_run(
        args,
        subject=_subject(args, selection),
        device=str(outcome.facts.get("device", "")),
        model=str(outcome.facts.get("sha256", "")),
        figures=outcome.figures.as_json(),
    )
    if args.report is not None:
        write_drive_report(args.report, outcome, verdicts)
    if args.json:
        files = {"log": args.log, "report": args.report, "lines": args.lines}
        judged = {"gates": [asdict(one) for one in verdicts]} if verdicts else {}
        print_json(outcome.as_json() | judged | {k: v and str(v) for k, v in files.items()})
    else:
        _print(args, outcome)
        print(*gate_lines(verdicts), sep="\n", end="\n" * bool(verdicts))
    if verdicts:
        return 0 if all(one.holds for one in verdicts) else 1
    return 0 if all(drive.is_clean for drive in outcome.drives) else 1


def _subject(args: argparse.Namespace, selection: Selection) -> str:
    """Return a description of the drives; only results with equal ones are comparable."""
    names = " ".join(args.scenario) or "lane-keeping"
    length = "" if args.km is None else f", {args.km:g} km"
    how = ", live" if args.live else ", expert" if args.expert else ""
    drives = count_text(selection.drives, "drive")
    return f"{names}, {drives} from seed {selection.seed}{length}{how}"


def _selection(args: argparse.Namespace) -> Selection:
    length_m = None if args.km is None else 1e3 * args.km
    return Selection(scenarios_named(args.scenario), args.seed, args.drives, length_m)


def _check(args: argparse.Namespace, gates: Sequence[Gate]) -> None:
    """Raise an error if options contradict each other or the artifact does not fit the cameras."""
    refuse(vars(args) | {"gates": gates, "workers": args.workers > 1}, RULES)
    if args.model is not None:
        artifact = read_driving_artifact(args.model)
        cameras = device_cameras() if args.live else cropped_cameras()
        for layout in formats(cameras).values():
            check_frame(args.model, artifact, layout)


def _drive(args: argparse.Namespace, selection: Selection, on_drive: OnDrive) -> Outcome:
    facts: dict[str, Any] = {"seed": selection.seed}
    if args.expert:
        return Outcome("the expert", tuple(expert_drives(selection, on_drive)), facts)
    facts |= _facts_of(args)
    if args.live:
        options = LiveOptions(
            args.model,
            args.bus,
            args.rate_hz or FULL_RATE_HZ,
            args.device,
            args.log,
            bool(args.quiet),
            args.camera_server,
        )
        drives, pace = live_drives(selection.trials(), options, on_drive)
        return Outcome(
            "the daemon process", tuple(drives), facts | live_facts(options, drives, pace)
        )
    if args.workers > 1:
        requests = selection.requests()
        done, device = drive_in_processes(requests, args.model, args.device, args.workers, on_drive)
        return Outcome("the model", tuple(done), facts | {"device": device, "live": False})
    with load_model(args.model, args.device) as model, _record(args.log) as record:
        drivers = DaemonDrivers(model.program, record=record)
        done = drive_all(selection, drivers, on_drive)
        return Outcome("the model", tuple(done), facts | {"device": model.device, "live": False})


def _facts_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the artifact's path and digest, read before drives that can take hours."""
    return {"model": str(args.model), "sha256": read_driving_artifact(args.model).sha256}


@contextmanager
def _record(log: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes an event to the log, or discards it if there is no log."""
    if log is None:
        yield ignore
        return
    with LogWriter(log) as writer:
        yield writer.write


def _print(args: argparse.Namespace, outcome: Outcome) -> None:
    print(table_of(outcome))
    facts = outcome.facts
    if args.live:
        print(
            f"frames answered: {facts['answered_share']:.2%}, late: {facts['late_share']:.2%}, "
            f"median {facts['latency_ms_p50']:g} ms"
        )
    for drive in outcome.drives:
        if not drive.is_clean:
            trial = drive.track.trial
            print(
                f"{trial.scenario.name}, seed {trial.seed}: {drive.track.end} after "
                f"{drive.track.driven_m:.0f} m, {drive.figures.departures} departures"
            )
    for name, path in (("log", args.log), ("report", args.report), ("lines", args.lines)):
        if path is not None:
            print(f"{name}: {path}")


# --- Planted faults ---------------------------------------------------------------------------


def _faults(args: argparse.Namespace) -> list[Fault]:
    return list(FAULTS.values()) if args.fault == "all" else [FAULTS[args.fault]]


def _run_faults(args: argparse.Namespace, selection: Selection, on_drive: OnDrive) -> int:
    """Drive without a fault and with each requested fault, print both; return 0."""
    names = ["", *(fault.name for fault in _faults(args))]
    facts = {"seed": selection.seed, **_facts_of(args)}
    if args.workers > 1:
        requests = [request for name in names for request in selection.requests(name or None)]
        drives, device = drive_in_processes(
            requests, args.model, args.device, args.workers, on_drive
        )
    else:
        with load_model(args.model, args.device) as model:
            drives, device = [], model.device
            for name in names:
                report = partial(_report_fault, on_drive, name)
                drivers = DaemonDrivers(model.program, FAULTS.get(name))
                drives += drive_all(selection, drivers, report)
    rows, results, each = [], [], len(drives) // len(names)
    for index, name in enumerate(names):
        outcome = Outcome("the model", tuple(drives[index * each : (index + 1) * each]))
        rows.append(row_of(name or "none", outcome.figures))
        results.append({"fault": name or "none", **outcome.figures.as_json()})
    if args.json:
        print_json({**facts, "device": device, "live": False, "faults": results})
    else:
        print(format_table(table_header("fault"), rows))
    return 0


def _report_fault(on_drive: OnDrive, name: str, drive: Drive) -> None:
    on_drive(replace(drive, fault=name))
