"""What commands on drives and logs refuse: each says it in one line, and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.tools.behaviour.test_drive_result import RESULT
from tests.tools.compare.made_logs import drive, move_lines, write_log
from tests.tools.conftest import Modeld

pytestmark = pytest.mark.opencl

REPLAY = "replay VIDEO --model good.pkl -o out.rlog"
SET = "replay VIDEO VIDEO --model good.pkl"
PLAY = "play VIDEO --bus ipc://bus --camera-server SERVER"
EXPORT = "export a.rlog"
LOGS = "compare a.rlog b.rlog"
RESULTS = "compare a.json b.json"
REGRESS = "regress --model good.pkl --drives VIDEO --reference references"
BISECT = "regress --bisect a.pkl b.pkl --drives d"
GATE = "--gate 'lead_seen_max < 1'"

# Exit code, words of the command, and what is said.
ROWS = [
    (2, f"{REPLAY} --limit 0", "--limit: expected at least 1 frame"),
    (2, f"{REPLAY} --focal-px -3", "--focal-px: expected a positive"),
    (2, f"{REPLAY} --report nowhere/r.html", "--report nowhere/r.html: expected its directory"),
    (4, "replay VIDEO --model none.pkl -o out.rlog", "none.pkl"),
    (4, "replay VIDEO --model cut.pkl -o out.rlog", "truncated"),
    (2, "replay --model good.pkl -o out.rlog", "expected at least one drive, found none"),
    (2, f"{SET} -o out.rlog.zst", "a directory for several drives or models, found the name of a"),
    (2, f"{SET} -o good.pkl", "expected a directory for several drives or models, found a file"),
    (2, f"{SET} -o none/out", "cannot be made"),
    (2, f"{SET} -o set --video out.mp4", "found several"),
    (2, f"{REPLAY} --video VIDEO", "would be lost"),
    (2, f"{REPLAY} --live --video out.mp4", "modeld export LOG"),
    (2, f"{REPLAY} --speed 2", "--speed: expected with --live only"),
    (2, f"{REPLAY} --block can", "--block: expected with --live only"),
    (2, f"{REPLAY} --live --report x.html", "--report: expected without --live"),
    (2, f"{REPLAY} --live --speed 11", "--speed: expected 0.1 to 10, found 11"),
    (2, f"{REPLAY} --live --model a b", "--live: expected one drive, one model and a log"),
    (2, f"{PLAY} --speed 0.05", "--speed: expected 0.1 to 10, found 0.05"),
    (2, f"{PLAY} --speed nan", "--speed: expected 0.1 to 10, found nan"),
    (2, f"{PLAY} --start -1", "--start: expected 0 s or more, found -1"),
    (2, f"{PLAY} --start 99", "a time within drive.mkv, found no frame from 99 s on"),
    (2, f"{PLAY} --limit 0", "--limit: expected at least 1 frame, found 0"),
    (2, f"{PLAY} --block carState,carStat", "--block: expected names of services, found carStat"),
    (2, f"{PLAY} --allow modelV3", "--allow: expected names of services, found modelV3"),
    (4, "play broken.mkv --bus ipc://bus", "broken.mkv"),
    (4, "play missing.mp4 --bus ipc://bus", "missing.mp4"),
    (4, "view --port 0 nothing.rlog", "nothing.rlog: expected a segment directory"),
    (4, "view --port 0 text", "text: expected a log"),
    (2, "view --port 0 --drive a.mp4", "--drive: expected a log beside it"),
    (2, "view --port 0 --host 0.0.0.0", "add --expose if all of them may watch"),
    (2, "view --port 70000", "--port: expected 0 to 65535"),
    (2, "view --port 0 --picture-rate nan", "--picture-rate: expected above 0"),
    (2, "view --port 0 --picture-width 9", "--picture-width: expected 64 to 1928"),
    (2, "view --port 0 --camera-server ../x", "--camera-server: frame ring: expected a name of"),
    (4, "view --port 0 --bus nowhere", "expected tcp://HOST or ipc:///DIR"),
    (2, EXPORT, "expected one of --mcap, --video, --rerun, found none"),
    (2, f"{EXPORT} --video out.mp4", "--video: expected --drive beside it"),
    (2, f"{EXPORT} --rerun out.rrd", "--rerun: expected --drive beside it"),
    (2, f"{EXPORT} --mcap out --picture-rate 0", "--picture-rate: expected a positive"),
    (2, f"{EXPORT} --mcap none/out.mcap", "expected its directory to exist"),
    (2, f"{EXPORT} --mcap a.rlog", "would be lost"),
    (2, f"{EXPORT} --mcap out --no-views --service carSate", "is it carState"),
    (4, "export text --mcap out", "text"),
    (2, f"{LOGS} --service noSuch", "noSuch"),
    (4, f"{LOGS} --service carState", "found none in a.rlog"),
    (2, f"{LOGS} --limit 0", "--limit"),
    (2, f"{LOGS} --tolerances nowhere", "nowhere"),
    (2, f"{LOGS} --html nowhere/page.html", "nowhere"),
    (2, f"{LOGS} --html b.rlog", "b.rlog"),
    (4, "compare a.rlog none.rlog", "none.rlog"),
    (4, "compare a.rlog text", "text"),
    (2, f"{LOGS} --gates-only", "expected gates that decide, found none"),
    (2, f"{LOGS} --gates-only --bit-exact {GATE}", "choose one"),
    (2, f"{LOGS} --gate 'lateral_3s_max_m < 1'", "expected the name of a figure"),
    (4, f"{LOGS} --truth none", "expected truth.npz of a rendered drive"),
    (2, "compare a.json b.rlog", "found one of each"),
    (2, f"{RESULTS} --bit-exact", "--bit-exact: expected two logs"),
    (2, f"{RESULTS} --gate 'ofset_p99_m < 1'", "did you mean offset_p99_m"),
    (2, f"{RESULTS} --gates-only", "expected gates that decide"),
    (4, "compare a.json none.json", "No such file"),
    (2, f"{REGRESS} --update", "--update: expected --reason TEXT"),
    (2, f"{REGRESS} --reason x", "--reason: expected --update"),
    (2, f"{REGRESS} --jobs 0", "--jobs: expected at least 1"),
    (2, f"{REGRESS} --no-timing --baseline x.pkl", "--baseline: expected the timing gate"),
    (2, f"{REGRESS} --report nowhere/x.html", "expected its directory to exist"),
    (2, f"{BISECT} --model x.pkl", "--bisect: expected no --model"),
    (2, f"{BISECT} --update", "--bisect: expected neither --update"),
    (2, f"{BISECT} --explain", "--bisect: expected neither --update nor --explain"),
    (2, f"{BISECT} {GATE}", "nor gates with it"),
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, tiny_model: Path, video: Path) -> Path:
    """A directory with two logs that differ, two results, an artifact and damaged files."""
    for name, events in (("a", drive(range(120, 130))), ("b", drive(range(120, 130), move_lines))):
        write_log(tmp_path / f"{name}.rlog", events)
        (tmp_path / f"{name}.json").write_text(json.dumps(RESULT), encoding="utf-8")
    shutil.copy(tiny_model, tmp_path / "good.pkl")
    (tmp_path / "cut.pkl").write_bytes(tiny_model.read_bytes()[:-500])
    (tmp_path / "broken.mkv").write_bytes(video.read_bytes()[:200])
    (tmp_path / "bus").mkdir()
    (tmp_path / "text").write_bytes(b"this is no log at all, whatever it says\n" * 9)
    return tmp_path


@pytest.mark.parametrize(("code", "words", "text"), ROWS, ids=[row[1] for row in ROWS])
def test_what_cannot_be_is_one_line(
    place: Path, video: Path, modeld: Modeld, code: int, words: str, text: str
) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in place.iterdir() if path.is_file()}

    before = files()
    words = words.replace("VIDEO", str(video)).replace("SERVER", f"refused-{os.getpid()}")
    with contextlib.chdir(place):
        modeld.refused(code, text, *shlex.split(words))
    assert files() == before
