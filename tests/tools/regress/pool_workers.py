"""What the pool's tests have workers do: functions of a module, since workers import them."""

import os
import signal
import time
from pathlib import Path
from threading import Timer

from tools.drives.open_drive import DriveOptions
from tools.regress.job import DriveName, Job, JobResult, ModelHolder


def make_jobs(place: Path, *names: str) -> list[Job]:
    return [Job(name, DriveOptions(), place, "0" * 64, "1" * 64) for name in names]


def answer(job: Job, holder: ModelHolder) -> JobResult:
    """Return a result that depends on the job alone; note in the artifact's place that it ran."""
    del holder
    with (job.artifact / "ran").open("a") as file:
        file.write(f"{job.drive}\n")
    name = DriveName(job.drive, "video", "0" * 64, 20.0)
    return JobResult(job.key, drive=name, outputs=job.drive.encode() * 3, digest=job.drive)


def die_once(job: Job, holder: ModelHolder) -> JobResult:
    """Kill the process the first time a drive called ``bad`` is run."""
    marker = job.artifact / "died"
    if job.drive.startswith("bad") and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(job, holder)


def die_always(job: Job, holder: ModelHolder) -> JobResult:
    """Kill the process whenever a drive called ``bad`` is run."""
    if job.drive.startswith("bad"):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(job, holder)


def die_idle(job: Job, holder: ModelHolder) -> JobResult:
    """Kill the process of ``brief`` after its end, then that of ``bad`` in its first run."""
    if job.drive == "brief":
        Timer(0.1, os._exit, (1,)).start()
    if job.drive == "bad":
        time.sleep(0.6)
    return die_once(job, holder)


def be_slow(job: Job, holder: ModelHolder) -> JobResult:
    """Never finish a drive called ``slow``."""
    if job.drive.startswith("slow"):
        Path(job.artifact / "started").write_text(str(os.getpid()))
        time.sleep(600)
    return answer(job, holder)


def be_interrupted(job: Job, holder: ModelHolder) -> JobResult:
    """Get what a terminal sends to all its processes when somebody presses Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    return answer(job, holder)
