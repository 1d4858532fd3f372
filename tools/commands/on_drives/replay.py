"""Send recorded drives through the daemon's own code and write all messages to event logs.

A drive is an openpilot segment or route, a comma2k19 segment or a video. Its messages and frames
reach the daemon in recorded order, with a simulated clock, as fast as the device allows: two runs
give the same log, byte for byte. Measured times are in a separate table, LOG.frames.npz. Recorded
messages that the daemon itself publishes are left out. With --monitoring a driver monitoring model
runs on the segment's driver camera, as its own process does in the car, and its driverStateV2
replaces the recorded one; otherwise the recorded one is kept.

A video has no calibration and no car. Unless --camera names a file, its camera is assumed to be a
level pinhole 1.22 m above the road, with a focal length of 0.9 picture widths (58 degrees, as in
dashcams and phones; change it with --focal-px). It replaces the wide camera, too. Car state comes
from --telemetry; without it the car drives straight at 20 m/s. Each frame becomes one model frame.
A video of 40 frames/s or more is thinned to the lowest rate of at least 20; --rate chooses another
one.

With several drives or models, the output is a directory: one log per pair, MODEL/DRIVE.rlog.zst,
and a summary.json and report.html of all. Finished pairs are kept when the command is run again;
--fresh repeats them. A drive that cannot be read does not stop the others; the exit code is then 4.

Example:
  modeld replay drive.mp4 --model driving.pkl -o out.rlog.zst --report out.html
  modeld replay drives/2023-07-27--13-01-19--5 drive.mp4 --model old.pkl new.pkl -o out
  modeld replay drive.mp4 --model driving.pkl -o out.rlog.zst --video out.mp4
  modeld replay drive.mp4 --model driving.pkl --live -o live.rlog.zst
  modeld replay SEGMENT --model driving.pkl --monitoring dmonitoring.pkl -o out.rlog.zst
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cereal.frames import STREAMS
from runtime.files.user_file import whole_file
from runtime.texts import count_text
from tools.command_files import check_files
from tools.drives.drive import Drive, DriveInfo
from tools.drives.open_drive import (
    DriveOptions,
    add_drive_arguments,
    drive_options,
    expand_drives,
    open_drive,
)
from tools.errors import UsageError
from tools.lib.json_output import json_text, print_json
from tools.lib.options import whole
from tools.lib.terminal import format_table
from tools.playback.batch import Batch, DriveFailure, Plan, plan_drives
from tools.playback.lock import output_lock
from tools.playback.model import LoadedModel, check_paths, loaded_models
from tools.playback.pictures import FramePictures, main_camera
from tools.playback.player.live_command import add_live_arguments, check_not_live, run_live
from tools.playback.progress import progress
from tools.playback.result import DriveResult, read_result
from tools.playback.run_drive import PlaybackOptions, run_drive
from tools.playback.set_report import write_set_report
from tools.report.report import (
    MAX_PICTURES,
    MEASURED_TIMES,
    Report,
    describe_models,
    pictures_of,
    write_report,
)
from tools.views.pass_over import Written

EXIT_BAD_INPUT = 4
LOG_SUFFIXES = (".zst", ".bz2", ".rlog", ".qlog")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "drives",
        nargs="*",
        metavar="DRIVE",
        help="segment, route, comma2k19 segment, or video file that FFmpeg decodes",
    )
    parser.add_argument(
        "--model", type=Path, default=[], nargs="+", metavar="PKL", help="driving artifacts"
    )
    parser.add_argument(
        "--monitoring",
        type=Path,
        metavar="PKL",
        help="driver monitoring artifact for the driver camera, with --model or alone",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUT",
        help="event log to write (.zst or .bz2 compresses, no ending is raw); for several drives "
        "or models a directory",
    )
    parser.add_argument("--report", type=Path, metavar="HTML", help="also write a one-page report")
    parser.add_argument(
        "--video",
        type=Path,
        metavar="MP4",
        help="also write a video with the model's outputs drawn in",
    )
    parser.add_argument("--rerun", type=Path, metavar="RRD", help="also write a rerun recording")
    add_drive_arguments(parser, may_split=True)
    add_live_arguments(parser)
    parser.add_argument(
        "--limit", type=whole("--limit"), metavar="N", help="stop after N frames of a drive"
    )
    parser.add_argument("--fresh", action="store_true", help="do finished drives again, too")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar on a terminal")


def run(args: argparse.Namespace) -> int:
    """Replay the drives; return 1 if a message is missing or not finite, 4 if a drive is bad."""
    if not args.drives and len(args.model) > 1:
        # `--model PKL DRIVE`: the drive was parsed as a second model.
        args.model, args.drives = args.model[:1], [str(path) for path in args.model[1:]]
    if not args.drives:
        raise UsageError("DRIVE: expected at least one drive, found none; name a video or segment")
    if not args.model and args.monitoring is None:
        raise UsageError("--model: expected a driving artifact, or --monitoring, found neither")
    options = replace(
        drive_options(args),
        driver_camera=args.monitoring is not None,
        road_cameras=bool(args.model),
    )
    _check_only_monitoring(args)
    if not args.live:
        check_not_live(args)
    is_single = len(args.drives) == 1 >= len(args.model) and not args.output.is_dir()
    if is_single:
        expanded = expand_drives(args.drives, options)
        if len(expanded) == 1:
            if args.live:
                _check_no_views(args, "expected without --live, found both")
                return run_live(args, expanded[0], options)
            return _run_single(args, expanded[0], options)
    if args.live:
        raise UsageError("--live: expected one drive, one model and a log, found several")
    _check_no_views(args, "expected one drive and one model, found several")
    return _run_several(args, options)


def _check_only_monitoring(args: argparse.Namespace) -> None:
    for option in ("report", "video", "rerun", "live"):
        if not args.model and getattr(args, option):
            raise UsageError(
                f"--{option}: expected --model with --monitoring, found none; it shows "
                "outputs of the driving model"
            )


def _check_no_views(args: argparse.Namespace, reason: str) -> None:
    for option in ("video", "rerun"):
        if getattr(args, option):
            raise UsageError(
                f"--{option}: {reason}; replay first, then: modeld export LOG --drive DRIVE "
                f"--{option} FILE"
            )


def _run_single(args: argparse.Namespace, text: str, options: DriveOptions) -> int:
    drive = open_drive(text, options)
    try:
        check_paths(args.model, args.monitoring, drive.info)
        shown = FramePictures(drive.info)
        wants_progress = not (args.no_progress or args.quiet)
        with (
            output_lock(args.output),
            loaded_models(args.model, args.monitoring, args.device) as (model,),
            progress([drive.info], models=1, limit=args.limit, show=wants_progress) as bar,
        ):

            def on_moment(moment: Any, result: Any) -> None:
                bar.count(moment, result)
                if args.report:
                    shown.take(moment, result)

            played = PlaybackOptions(limit=args.limit, on_moment=on_moment)
            outcome = run_drive(drive, model, args.output, played)
            pictures = shown.choose(MAX_PICTURES)
            result = read_result(drive.info, model.paths, args.output, pictures)
            if args.report:
                write_report(args.report, _make_report(result, model))
        _write_views(args, drive)
    finally:
        drive.close()
    return _print_single(args, result, outcome.wall_s)


def _write_views(args: argparse.Namespace, drive: Drive) -> None:
    """Write the video and the rerun recording, by reading the drive again with its log."""
    writers = []
    if args.video:
        from tools.views.recordings import write_overlay_video

        writers.append((args.video, write_overlay_video))
    if args.rerun:
        from tools.views.recordings import write_rerun

        writers.append((args.rerun, write_rerun))
    shows = bool(writers) and not (args.no_progress or args.quiet)
    for path, write in writers:
        with progress([drive.info], models=1, limit=args.limit, show=shows) as bar:
            write(drive, args.output, Written(path, on_frame=bar.tick), args.limit)


def _make_report(result: DriveResult, model: LoadedModel) -> Report:
    info, manifest = result.info, model.artifact.manifest
    camera = main_camera(info)
    facts = {
        **info.facts,
        "time": result.drive.time.text(),
        "artifact": f"{model.path.name}, sha256 {model.artifact.sha256[:16]}, compiled for "
        f"{manifest.target.name} ({manifest.target.device})",
        "models": describe_models(manifest),
    }
    if result.monitoring_line is not None:
        facts["driver monitoring"] = result.monitoring_line
    frames = int(result.frames.frame_id.size)
    return Report(
        title=f"Replay of {info.name}",
        summary=f"{count_text(frames, 'frame')} of {_size(info)} at {info.rate_hz:g} frames/s, "
        "through the daemon's own loop.",
        facts=facts,
        drive=result.drive,
        frames_sent=frames,
        pictures=pictures_of(result.drive, result.pictures, camera) if camera else [],
        mounting=info.mounting,
        times_from=MEASURED_TIMES,
    )


def _print_single(args: argparse.Namespace, result: DriveResult, wall_s: float) -> int:
    figures = result.as_json()
    figures |= {
        "video": args.drives[0],
        "wall_s": round(wall_s, 3),
        "report": str(args.report) if args.report else None,
        "overlay": str(args.video) if args.video else None,
        "rerun": str(args.rerun) if args.rerun else None,
    }
    if args.json:
        print_json(figures)
    else:
        print(f"{args.drives[0]}: {count_text(figures['frames'], 'frame')} of {_size(result.info)}")
        messages = "  ".join(f"{name} {count}" for name, count in figures["messages"].items())
        print(f"{messages}  valid {figures['valid']}")
        if figures["execution_ms"]:
            times = "  ".join(f"{k} {v:.1f}" for k, v in figures["execution_ms"].items())
            print(f"execution ms: {times}")
        if result.monitoring_line is not None:
            print(f"driver monitoring: {result.monitoring_line}")
        print(f"log: {args.output}")
        if args.report:
            print(f"report: {args.report}")
        for option in ("video", "rerun"):
            if getattr(args, option):
                print(f"{option}: {getattr(args, option)}")
    return _report_problems([result.problem] if result.problem else [])


@dataclass(slots=True)
class _Tally:
    """The results of several drives and models, without their arrays."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, result: DriveResult) -> None:
        """Add the result of one pair of drive and model."""
        self.figures.append(result.as_json())
        if result.problem is not None:
            self.problems.append(result.problem)


def _run_several(args: argparse.Namespace, options: DriveOptions) -> int:
    _make_directory(args.output)
    report = args.report or args.output / "report.html"
    with output_lock(args.output), ExitStack() as stack:
        models = stack.enter_context(loaded_models(args.model, args.monitoring, args.device))
        plan = plan_drives(args.drives, options)
        tally = _Tally(errors=[str(error) for error in plan.errors])
        infos = [planned.info for planned in plan.drives]
        wants_progress = not (args.no_progress or args.quiet)
        bar = stack.enter_context(
            progress(infos, models=len(models), limit=args.limit, show=wants_progress)
        )
        batch = Batch(
            directory=args.output,
            models=models,
            drive_options=options,
            limit=args.limit,
            fresh=args.fresh,
            on_moment=bar.count,
            on_kept=bar.skip,
        )
        check_files(args, batch.files(plan.drives))
        title = f"Replay of {count_text(len(infos), 'drive')}"
        # The page is written while the drives are played, so that no drive stays in memory.
        write_set_report(report, title, _play_all(batch, plan, tally), tally.errors)
        summary = {
            "directory": str(args.output),
            "drives": tally.figures,
            "errors": tally.errors,
            "report": str(report),
        }
        _write_summary(args.output / "summary.json", summary)
    return _print_several(args, summary, tally)


def _play_all(batch: Batch, plan: Plan, tally: _Tally) -> Iterator[Sequence[DriveResult]]:
    for planned in plan.drives:
        errors: list[DriveFailure] = []
        results = batch.run(planned, errors)
        tally.errors.extend(str(error) for error in errors)
        for result in results:
            tally.add(result)
        yield results


def _make_directory(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise UsageError(
            f"--output {output}: expected a directory for several drives or models, found a file; "
            "name another one"
        )
    if output.suffix in LOG_SUFFIXES and not output.is_dir():
        raise UsageError(
            f"--output {output}: expected a directory for several drives or models, found the "
            "name of a log; name a directory"
        )
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output {output}: cannot be made ({error.strerror}); name another directory"
        ) from error


def _write_summary(path: Path, summary: dict[str, Any]) -> None:
    try:
        with whole_file(path) as file:
            file.write(json_text(summary).encode() + b"\n")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}); free some disk space"
        ) from error


def _print_several(args: argparse.Namespace, summary: dict[str, Any], tally: _Tally) -> int:
    if args.json:
        print_json(summary)
    else:
        heads = ["drive", "model", "frames", "published", "valid", "median ms", "p99 ms", ""]
        print(format_table(heads, [_row(figures) for figures in tally.figures]))
        print(f"report: {summary['report']}")
    code = _report_problems(tally.problems)
    for error in tally.errors:
        print(f"modeld: error: {' '.join(error.split())}", file=sys.stderr)
    return EXIT_BAD_INPUT if tally.errors else code


def _row(figures: dict[str, Any]) -> list[object]:
    times = figures["execution_ms"] or {}
    return [
        figures["drive"],
        Path(figures["model"]).name,
        figures["frames"],
        figures["published"],
        figures["valid"],
        times.get("median"),
        times.get("p99"),
        "kept" if figures["kept"] else "",
    ]


def _report_problems(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"modeld: error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _size(info: DriveInfo) -> str:
    layout = next(info.formats[name] for name in STREAMS if name in info.formats)
    return f"{layout.width}x{layout.height}"
