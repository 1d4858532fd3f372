"""``modeld replay`` of recorded segments: what was recorded comes out, whatever is read or lost."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cereal.log_reader import read_log, read_log_bytes
from cereal.schema import read_event
from tests.tools.conftest import Modeld
from tests.tools.drives.segments import FILE_OF, SMALL, Segment, Track, write_segment
from tests.tools.page import Page
from tools.messages.drive_log import OUTPUT_SERVICES

pytestmark = pytest.mark.opencl

ROUTE = "000001d4--2648a9a404"
IDS = range(12)


class Replay:
    """Replays segments that it writes into a log of the test's."""

    def __init__(self, modeld: Modeld, model: Path, root: Path) -> None:
        self.modeld, self.model, self.root = modeld, model, root
        self.log = root / "out.rlog"

    def write(self, *segments: Segment) -> Path:
        for one in segments:
            write_segment(self.root / f"{ROUTE}--{one.number}", one)
        return self.root / f"{ROUTE}--{segments[0].number}"

    def __call__(self, drive: Path | str, *more: object, code: int = 0) -> Any:
        words = ["--model", self.model, "--data-dir", self.root, "-o", self.log, *more]
        return self.modeld(code, "replay", drive, *words)

    def said(self) -> list[bytes]:
        """Return what is in the log and not of the daemon."""
        events = read_log_bytes(self.log)
        return [data for data in events if read_event(data).which() not in OUTPUT_SERVICES]

    def frames(self) -> list[int]:
        """Return the frames that were answered with a message that is valid."""
        models = (event for event in read_log(self.log) if event.which() == "modelV2")
        return [event.modelV2.frameId for event in models if event.valid]


@pytest.fixture
def replay(modeld: Modeld, tiny_model: Path, tmp_path: Path) -> Replay:
    return Replay(modeld, tiny_model, tmp_path)


def test_every_recorded_event_comes_out_as_it_was(replay: Replay) -> None:
    """A route of three segments of old software, to the closing sentinel."""
    old = {name: Track((), has_starts=False) for name in ("road", "wideRoad")}
    for number in range(3):
        ids = range(12 * number, 12 * number + 12)
        tracks = {name: replace(track, pictures=ids) for name, track in old.items()}
        replay.write(Segment(number, tracks, device="tizi", device_state_type="unknown"))
    # The cameras of 64x48 are in no table: nothing said is valid.
    assert "invalid" not in replay(ROUTE, code=1).out
    recorded = [
        data
        for number in range(3)
        for data in read_log_bytes(replay.root / f"{ROUTE}--{number}" / "rlog.zst")
    ]
    said = replay.said()
    assert sorted(said) == sorted(recorded)
    kinds = [event.which() for event in map(read_event, said)]
    counts = Counter(kinds)
    assert (counts["sentinel"], counts["initData"]) == (6, 3)
    begins = [at for at, kind in enumerate(kinds) if kind == "initData"]
    assert {kinds[at + 1] for at in begins} == {"sentinel"}
    # Each at its place: the frames of a segment come behind its start.
    assert [kinds[:at].count("roadCameraState") for at in begins] == [0, 12, 24]
    assert (said[0], said[-1]) == (recorded[0], recorded[-1])


def test_a_small_log_and_small_pictures_are_replayed_and_said_to_be_reduced(
    replay: Replay, tmp_path: Path
) -> None:
    segment = Segment(0, {SMALL: Track(IDS, states=IDS[::5])}, log="qlog.zst")
    page = tmp_path / "page.html"
    replay(replay.write(segment), "--report", page)
    # From the first calibration and state on, which the daemon waits for, all is valid.
    assert replay.frames() == [*IDS]
    assert "qlog, qcamera 64x48, road camera only; focal lengths 54.4 x 72.1 px" in Page(page).text


@pytest.mark.slow
@pytest.mark.alone
def test_a_daemon_of_its_own_takes_the_small_pictures_for_what_they_are(replay: Replay) -> None:
    replay(replay.write(Segment(0, {SMALL: Track(IDS, states=IDS[::5])}, log="qlog.zst")), "--live")
    assert replay.frames() == [*IDS]


@pytest.mark.parametrize(("stream", "code"), [(SMALL, 0), ("road", 1)])
def test_a_damaged_video_gives_the_frames_before_it_and_the_whole_log(
    replay: Replay, stream: str, code: int
) -> None:
    """With the exit code of the whole drive; the full pictures of 64x48 are of no known camera."""
    place = replay.write(Segment(0, {stream: Track(IDS)}))
    replay(place, code=code)
    whole = replay.said()
    video = place / FILE_OF[stream]
    video.write_bytes(video.read_bytes()[: video.stat().st_size * 6 // 10])
    said = replay(place, code=code).err
    assert replay.said() == whole
    answered = [e.modelV2.frameId for e in read_log(replay.log) if e.which() == "modelV2"]
    assert answered == [*range(len(answered))]
    assert 4 <= len(answered) <= 8
    assert f"frame {len(answered)} and those after it in this file are left out" in said
