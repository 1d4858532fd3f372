"""Live replay: plays a drive in real time to our own daemon processes, and writes a log.

Unlike the deterministic replay in one process, this works as in the car: frames in shared memory,
messages over ZeroMQ, and a daemon that does not know their source. The first frame is offered until
the daemon answers it, so that the daemon receives the whole drive. Any later frame without an
answer is reported. The log has the played events and the daemon's outputs, which are stamped with
the time of the drive at which they arrived. Reasons: docs/adr/0013-replay.md.
"""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cereal.clock import MonotonicClock
from cereal.transport import ZmqTransport
from modeld.daemon import PUBLICATIONS
from modeld.health.reporter import HEALTH_SERVICES
from runtime.texts import count_text
from tools.drives.drive import Drive, DriveInfo, FirstPart
from tools.errors import UsageError
from tools.lib.processes import Child, ProcessError
from tools.messages.drive_log import MONITORING_SERVICE
from tools.playback.model import check_paths, read_driving_artifact
from tools.playback.outcome import Outcome, frames_path, save_frames
from tools.playback.player.command_line import late_text, play_report, spread
from tools.playback.player.daemon import camera_options
from tools.playback.player.live_answers import (
    MODEL_SERVICE,
    Answer,
    Jitter,
    Listener,
    LiveLog,
    judge,
)
from tools.playback.player.outlet import OPENED_FIRST, BusOutlet
from tools.playback.player.player import Played, Player, PlayOptions
from tools.playback.threads import punctual, read_yielding

# Includes loading, and building kernels if the artifact has no binaries.
START_TIMEOUT_S: Final = 120.0
# Time for the handshake of sockets whose peers exist.
CONNECT_S: Final = 0.2
LAST_ANSWER_S: Final = 2.0
# Time for the two messages that follow modelV2.
LAST_MESSAGES_S: Final = 0.1
_MAX_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The drive's playback and the models for one live replay."""

    model: Path  # driving artifact
    log: Path  # path of the event log
    options: PlayOptions  # playback options; `loop` must be false
    device: str | None = None  # as for ``modeld run``; None for the best
    # Driver monitoring artifact for a second daemon, or None.
    monitoring: Path | None = None

    @property
    def publications(self) -> tuple[str, ...]:
        """The services that the daemons publish."""
        return PUBLICATIONS if self.monitoring is None else (*PUBLICATIONS, MONITORING_SERVICE)


@dataclass(frozen=True, slots=True)
class LiveOutcome:
    """The outcome of a live replay."""

    outcome: Outcome  # as for any replay; `peak_rss_bytes` is the daemon's
    jitter: Jitter  # how regularly the daemon answered
    playing: dict[str, Any]  # the player's own report, see `play_report`
    # The same for driver monitoring and its camera, or None.
    monitored: Jitter | None = None


def replay_live(drive: Drive, job: LiveJob) -> LiveOutcome:
    """Play a drive to our own daemon processes; the log is complete when this returns.

    Raises:
        UsageError: the options request services that the daemons publish themselves.
        ArtifactMismatchError: the artifact does not fit the drive's cameras.
        ProcessError: a daemon ended, or never answered.
        PictureSizeError: the pictures change their size; the log ends before the change.
        ToolError: the drive cannot be read to its end.
        RuntimeFault: the artifact is missing or damaged.
        CerealError: the log cannot be written, or a ring or service is in use.
    """
    info, part = drive.info, FirstPart(drive)
    check_paths([job.model], job.monitoring, info)
    job = _without_their_services(job)
    played: list[Played] = []
    watched: list[Played] = []
    clock = MonotonicClock()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="modeld-live-"))
        transport, server = ZmqTransport(f"ipc://{directory}"), f"live-{os.getpid()}"
        stack.callback(transport.close)
        first = [name for name in OPENED_FIRST if job.options.services.passes(name)]
        outlet = BusOutlet(transport, server, info.formats, first)
        stack.callback(outlet.close)
        log = stack.enter_context(LiveLog(job.log))
        player = Player(info, read_yielding(part), outlet, clock, job.options)

        def take(data: bytes, mono_time_ns: int) -> None:
            log.write(data, player.timeline.played_ns(mono_time_ns))

        daemons = [
            stack.enter_context(Child(name, "tools.cli", words))
            for name, words in _daemons(job, info, Path(directory), server).items()
        ]
        _await_services(daemons, [Path(directory, name) for name in job.publications])
        listener = stack.enter_context(Listener(transport, job.publications, clock, take))
        time.sleep(CONNECT_S)
        player.on_frame, player.on_driver_frame = played.append, watched.append
        player.on_message = log.write
        start_s = time.monotonic()
        _play(player, listener, daemons)
        _await_answers(((listener.answers, played), (listener.monitored, watched)))
        wall_s = time.monotonic() - start_s
        # Subscribers should receive the last messages before the daemon ends.
        time.sleep(LAST_MESSAGES_S)
        _stop(daemons)
        listener.check()
        jitter, monitored = judge(played, listener.answers, job.options.speed), None
        if job.monitoring is not None:
            monitored = judge(watched, listener.monitored, job.options.speed)
            jitter = replace(jitter, table=replace(jitter.table, driver=monitored.table))
        # Saved before the log gets its name at the end of this block, so a log always has its
        # table.
        save_frames(frames_path(job.log), jitter.table)
    part.check()
    outcome = Outcome(
        drive=info,
        artifact_sha256=read_driving_artifact(job.model).sha256,
        device=job.device or "the best",
        log=job.log,
        frames=jitter.table,
        wall_s=wall_s,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    )
    return LiveOutcome(outcome, jitter, play_report(player.counts, played), monitored)


def _stop(daemons: Sequence[Child]) -> None:
    for daemon in daemons:
        code = daemon.stop()
        if code != 0:
            raise ProcessError(f"{daemon.name}: expected exit code 0 after SIGTERM, found {code}")


def _without_their_services(job: LiveJob) -> LiveJob:
    """Return the job with all services played except those that its daemons publish."""
    made = frozenset({*job.publications, *HEALTH_SERVICES.values()})
    services = replace(job.options.services, made=made)
    job = replace(job, options=replace(job.options, services=services))
    own = sorted(name for name in job.publications if job.options.services.passes(name))
    if own:
        raise UsageError(
            f"--allow: expected no service that the daemon publishes, found {', '.join(own)}; play "
            "them without --live"
        )
    return job


def _daemons(job: LiveJob, info: DriveInfo, directory: Path, server: str) -> dict[str, list[str]]:
    """Return the command line of each daemon, by name."""
    bus = f"ipc://{directory}"
    found = {"daemon": _daemon_arguments(job, info, directory, bus, server)}
    if job.monitoring is not None:
        found["monitoring"] = _common_arguments(job, job.monitoring, bus, server)
    return found


def _daemon_arguments(
    job: LiveJob, info: DriveInfo, directory: Path, bus: str, server: str
) -> list[str]:
    arguments = _common_arguments(job, job.model, bus, server)
    # The drive's car comes over the bus; stored parameters on this machine are of another car.
    arguments += ["--params", str(directory)]
    if info.car_params is None:
        arguments.append("--demo")
    return arguments + camera_options(info)


def _common_arguments(job: LiveJob, model: Path, bus: str, server: str) -> list[str]:
    arguments = ["run", "--model", str(model), "--bus", bus, "--camera-server", server]
    return arguments if job.device is None else [*arguments, "--device", job.device]


def _await_services(daemons: Sequence[Child], sockets: Sequence[Path]) -> None:
    """Wait until the daemons publish, because later subscribers connect immediately.

    An earlier subscriber would look for its publisher only every half second, and miss the answer
    to the first frame.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not all(socket.exists() for socket in sockets):
        for daemon in daemons:
            daemon.check_running()
        if time.monotonic() > deadline_s:
            raise ProcessError(
                f"daemon: expected it to publish within {START_TIMEOUT_S:g} s, found nothing; run "
                "it by hand with -v: modeld run --model ... -v"
            )
        time.sleep(0.01)


def _play(player: Player, listener: Listener, daemons: Sequence[Child]) -> None:
    """Play the drive, and raise ProcessError if a daemon ends or never answers."""
    deadline_s = time.monotonic() + START_TIMEOUT_S

    def attend(_: Player) -> None:
        listener.check()
        for daemon in daemons:
            daemon.check_running()
        if not listener.answers and time.monotonic() > deadline_s:
            raise ProcessError(
                f"daemon: expected a modelV2 within {START_TIMEOUT_S:g} s, found none; run it by "
                "hand with -v: modeld run --model ... -v"
            )

    player.is_answered = listener.has_answered
    with punctual():
        player.run(threading.Event(), attend)


def _await_answers(pairs: Sequence[tuple[list[Answer], list[Played]]]) -> None:
    """Wait until the last frame of each camera is answered, or until LAST_ANSWER_S have passed."""
    deadline_s = time.monotonic() + LAST_ANSWER_S
    for answers, played in pairs:
        last = {one.frame_id for one in played[-1:]}
        while time.monotonic() < deadline_s and last - {one.frame_id for one in answers[-10:]}:
            time.sleep(0.01)


def live_report(result: LiveOutcome) -> dict[str, Any]:
    """Return the part of the report for `--json` that only live replay has."""
    report = _jitter_report(result.jitter) | {"playing": result.playing}
    if result.monitored is not None:
        report["monitoring"] = _jitter_report(result.monitored)
    return report


def _jitter_report(jitter: Jitter) -> dict[str, Any]:
    table, played = jitter.table, int(jitter.table.frame_id.size)
    return {
        "frames": played,
        "answered": played - int(jitter.unanswered.size),
        "unanswered": [int(one) for one in jitter.unanswered[:_MAX_NAMED]],
        "repeated": [int(one) for one in jitter.repeated[:_MAX_NAMED]],
        "frame_drop_percent": round(jitter.drop_percent, 3),
        "interval_deviation_ms": spread(jitter.deviation_ms),
        "latency_ms": spread(jitter.latency_ms),
        "execution_ms": spread(1e3 * table.execution_s[table.published]),
    }


def live_lines(result: LiveOutcome) -> list[str]:
    """Return the same report as lines of text."""
    report = live_report(result)
    frames = count_text(report["frames"], "frame")
    lines = [f"live: {report['answered']} of {frames} answered; {late_text(result.playing)}"]
    for name, key in (
        ("deviation of modelV2 intervals from the recording", "interval_deviation_ms"),
        ("latency from frame to modelV2", "latency_ms"),
    ):
        found = report[key]
        if found is not None:
            figures = "  ".join(f"{part} {value:.2f}" for part, value in found.items())
            lines.append(f"{name}, ms: {figures}")
    monitored = report.get("monitoring")
    if monitored is not None:
        frames = count_text(monitored["frames"], "frame")
        lines.append(f"{MONITORING_SERVICE}: {monitored['answered']} of {frames} answered")
    return lines


def answer_problems(result: LiveOutcome) -> list[str]:
    """Return one line for each problem: frames that were not answered exactly once."""
    problems = []
    for name, jitter in ((MODEL_SERVICE, result.jitter), (MONITORING_SERVICE, result.monitored)):
        if jitter is None:
            continue
        for ids, what in ((jitter.unanswered, "no"), (jitter.repeated, "several")):
            if ids.size:
                named = ", ".join(str(one) for one in ids[:_MAX_NAMED])
                more = ", ..." if ids.size > _MAX_NAMED else ""
                problems.append(
                    f"{result.outcome.log}: expected one {name} for each of "
                    f"{jitter.table.frame_id.size} frames, found {what} {name} for {ids.size} of "
                    f"them ({named}{more}); is the machine overloaded? try --speed 0.5"
                )
    return problems
