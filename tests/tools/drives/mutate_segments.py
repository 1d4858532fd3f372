"""Damaged drives: segments of which bytes, files or names were changed at random, by seed.

Whatever is wrong with them, what comes of it is frames, or one error of a known type.
``python -m tests.tools.drives.mutate_segments --count 10000`` plays as many and says what came of
them.
"""

import argparse
import faulthandler
import functools
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cereal.errors import CerealError
from tests.logs.mutate import mutate
from tests.tools.drives.segments import FILE_OF, Segment, Track, shown, write_segment
from tools.drives.open_drive import DriveOptions
from tools.drives.openpilot import expand, open_drive
from tools.errors import ToolError

ROUTE = "000001d4--2648a9a404"
LOGS = ("rlog", "rlog.bz2", "rlog.zst")
COUNT = 8
# What damaging a video leaves of a log is right, so that pixels and ids can be compared.
VIDEO_ONLY = "video"
Files = dict[str, bytes]


class Mutator:
    """Makes damaged copies of a two-segment route."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._templates = [_template(directory / "template", log) for log in LOGS]

    def write(self, seed: int) -> tuple[Path, str]:
        """Write the damaged route of a seed; return its directory and what was done."""
        rng = random.Random(seed)  # noqa: S311 - damage, no secret
        # Plain logs most often: damage inside compressed data is found by the codec at once.
        files = dict(rng.choices(self._templates, (6, 1, 1))[0])
        kind, mutation = rng.choice(MUTATIONS)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            if files:
                mutation(files, rng)
        root = self._directory / "mutated"
        shutil.rmtree(root, ignore_errors=True)
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        root.mkdir(exist_ok=True)
        return root, kind


def play(root: Path, kind: str, seed: int) -> str:
    """Play whatever is there; return what came of it."""
    options = DriveOptions(data_dir=root, driver_camera=seed % 7 == 0, split=seed % 5 == 0)
    moments = 0
    try:
        for text in expand(ROUTE, options) or []:
            drive = open_drive(text, options)
            try:
                for moment in drive.moments(seed % 3):
                    moments += 1
                    for stream, frame in moment.frames.items():
                        assert frame.data.shape == (frame.format.size,)
                        if kind == VIDEO_ONLY:
                            assert shown(frame) == (stream, frame.frame_id), seed
            finally:
                drive.close()
    except (ToolError, CerealError) as error:
        text = str(error)
        assert "\n" not in text.strip(), seed
        return f"{type(error).__name__} {'after frames' if moments else 'at once'}"
    return "played"


def _template(directory: Path, log: str) -> Files:
    files: Files = {}
    for number in range(2):
        ids = range(COUNT * number, COUNT * (number + 1))
        track = Track(ids, hashed=True, repeats_headers=number == 1)
        segment = Segment(number, dict.fromkeys(("road", "wideRoad"), track), log=log)
        path = write_segment(directory / log / f"{ROUTE}--{number}", segment)
        files |= {f"{path.name}/{one.name}": one.read_bytes() for one in sorted(path.iterdir())}
    return files


def _damage(files: Files, rng: random.Random, *, video: bool) -> None:
    names = [name for name in files if name.endswith(".hevc") == video and files[name]]
    if names:
        name = rng.choice(names)
        files[name] = mutate(files[name], np.random.default_rng(rng.getrandbits(32)))


def _lose(files: Files, rng: random.Random) -> None:
    del files[rng.choice(list(files))]


def _empty(files: Files, rng: random.Random) -> None:
    files[rng.choice(list(files))] = b""


def _swap(files: Files, rng: random.Random) -> None:
    one, other = rng.choice(list(files)), rng.choice(list(files))
    files[one], files[other] = files[other], files[one]


def _rename_file(files: Files, rng: random.Random) -> None:
    name = rng.choice(list(files))
    new = rng.choice(("rlog", "qlog.zst", "rlog.bz2", *FILE_OF.values(), "other"))
    files[f"{Path(name).parent}/{new}"] = files.pop(name)


def _rename_directory(files: Files, rng: random.Random) -> None:
    old = f"{ROUTE}--{rng.randrange(2)}"
    new = f"{ROUTE}--{rng.choice((0, 1, 2, 9, 9999))}"
    for name in [name for name in files if name.startswith(f"{old}/")]:
        files[name.replace(old, new)] = files.pop(name)


MUTATIONS: tuple[tuple[str, Callable[[Files, random.Random], None]], ...] = (
    *[("log", functools.partial(_damage, video=False))] * 3,
    *[(VIDEO_ONLY, functools.partial(_damage, video=True))] * 2,
    ("lost", _lose),
    ("empty", _empty),
    ("swapped", _swap),
    ("renamed", _rename_file),
    ("renamed", _rename_directory),
)


def main() -> int:
    """Play damaged routes and count what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="routes to damage and play")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    args = parser.parse_args()
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    outcomes: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        mutator = Mutator(Path(scratch))
        for seed in range(args.seed, args.seed + args.count):
            root, kind = mutator.write(seed)
            try:
                outcomes[kind, play(root, kind, seed)] += 1
            except BaseException:
                sys.stderr.write(f"seed {seed}: {kind}\n")
                raise
    for (kind, outcome), count in sorted(outcomes.items()):
        sys.stdout.write(f"{kind:10} {outcome:40} {count:6}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
