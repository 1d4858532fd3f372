"""What commands on drives and logs refuse: each says it in one line, and leaves nothing."""

import contextlib
import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.runtime import tiny
from tests.scheduler.onnx_import.tiny_models import model_of, value
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
DUMP = "inspect a.rlog --dump"
DAEMON = "bench --daemon 1 --model good.pkl"
UNIT = "install-unit --prefix units --print"
SECONDS = "expected a number above 0 up to 1e+07"
SPEED = "--speed: expected a number from 0.1 up to 10"
PEERS = "expected one of onnxruntime, openvino, tinygrad"

# Exit code, words of the command, and what is said.
ROWS = [
    (2, f"{REPLAY} --limit 0", "--limit: expected a whole number from 1"),
    (2, f"{REPLAY} --focal-px -3", "--focal-px: expected a number above 0"),
    (2, f"{REPLAY} --report nowhere/r.html", "--report nowhere/r.html: expected its directory"),
    (4, "replay VIDEO --model none.pkl -o out.rlog", "none.pkl"),
    (4, "replay VIDEO --model cut.pkl -o out.rlog", "truncated"),
    (2, "replay --model good.pkl -o out.rlog", "expected at least one drive, found none"),
    (2, f"{SET} -o out.rlog.zst", "a directory for several drives or models, found the name of a"),
    (2, f"{SET} -o text", "expected a directory for several drives or models, found a file"),
    (2, f"{SET} -o set --video out.mp4", "found several"),
    (2, f"{REPLAY} --live --video out.mp4", "modeld export LOG"),
    (2, f"{REPLAY} --speed 2", "--speed: expected with --live only"),
    (2, f"{REPLAY} --block can", "--block: expected with --live only"),
    (2, f"{REPLAY} --live --report x.html", "--report: expected without --live"),
    (2, f"{REPLAY} --live --speed 11", f"{SPEED}, found 11"),
    (2, f"{REPLAY} --live --model a b", "--live: expected one drive, one model and a log"),
    (2, f"{PLAY} --speed 0.05", f"{SPEED}, found 0.05"),
    (2, f"{PLAY} --start -1", "--start: expected a number from 0 up to 1e+07, found -1"),
    (2, f"{PLAY} --start 99", "a time within drive.mkv, found no frame from 99 s on"),
    (2, f"{PLAY} --limit 0", "--limit: expected a whole number from 1"),
    (2, f"{PLAY} --block carState,carStat", "--block: expected names of services, found carStat"),
    (2, f"{PLAY} --allow modelV3", "--allow: expected names of services, found modelV3"),
    (4, "play broken.mkv --bus ipc://bus", "broken.mkv"),
    (1, "play VIDEO --camera-server SERVER --publish ipc://none", "expected the directory none"),
    (4, "play missing.mp4 --bus ipc://bus", "missing.mp4"),
    (4, "view --port 0 nothing.rlog", "found no such file"),
    (4, "view --port 0 text", "text: expected an event log, a segment or a route, found text"),
    (2, "view --port 0 --drive a.mp4", "--drive: expected a log with it"),
    (2, "view --port 0 --host 0.0.0.0", "add --expose to let them watch"),
    (2, "view --port 70000", "--port: expected a whole number from 0 to 65535"),
    (2, "view --port 0 --picture-width 9", "expected a whole number from 64 to 1928"),
    (2, "view --port 0 --camera-server ../x", "--camera-server: cameras: expected NAME of"),
    (2, "view --port 0 --bus nowhere", "bus: expected tcp://HOST, tcp://HOST:[HASH][+N]"),
    (2, "view --port 0 --publish tcp://h:1", "or msgq:PREFIX, got 'tcp://h:1'; use tcp://"),
    (2, EXPORT, "expected one of --mcap, --video, --rerun, found none"),
    (2, f"{EXPORT} --video out.mp4", "--video: expected --drive with it"),
    (2, f"{EXPORT} --rerun out.rrd", "--rerun: expected --drive with it"),
    (2, f"{EXPORT} --mcap out --picture-rate 0", "--picture-rate: expected a number above 0"),
    (2, f"{EXPORT} --mcap out --no-views --service carSate", "(did you mean carState?)"),
    (4, "export text --mcap out", "text"),
    (4, "export empty.rlog --mcap out", "expected an event log, found an empty file"),
    (2, f"{EXPORT} --mcap out --service can", "--service: expected messages of can in a.rlog"),
    (4, f"{EXPORT} --mcap out --drive VIDEO", "name the drive that the log was made from"),
    (4, "bench --log empty.rlog", "or an event log, found an empty file"),
    (2, f"{LOGS} --service noSuch", "noSuch"),
    (4, f"{LOGS} --service carState", "found none in a.rlog"),
    (2, f"{LOGS} --limit 0", "--limit"),
    (2, f"{LOGS} --tolerances nowhere", "nowhere"),
    (4, "compare a.rlog none.rlog", "none.rlog"),
    (4, "compare a.rlog text", "text"),
    (2, f"{LOGS} --gates-only", "expected gates that decide, found none"),
    (2, f"{LOGS} --gates-only --bit-exact {GATE}", "choose one"),
    (2, f"{LOGS} --gate 'lateral_3s_max_m < 1'", "expected the name of a figure"),
    (4, f"{LOGS} --truth none", "expected the truth of a rendered drive, found no such file"),
    (2, "compare a.json b.rlog", "found one of each"),
    (2, f"{RESULTS} --bit-exact", "--bit-exact: expected two logs"),
    (2, f"{RESULTS} --gate 'ofset_p99_m < 1'", "did you mean offset_p99_m"),
    (2, f"{RESULTS} --gates-only", "expected gates that decide"),
    (4, "compare a.json none.json", "found no such file"),
    (2, f"{REGRESS} --update", "--update: expected --reason TEXT"),
    (2, f"{REGRESS} --reason x", "--reason: expected --update"),
    (2, f"{REGRESS} --jobs 0", "--jobs: expected a whole number from 1"),
    (2, f"{REGRESS} --no-timing --baseline x.pkl", "--baseline: expected the timing gate"),
    (2, f"{REGRESS} --baseline-tree .", "--baseline-tree: expected --baseline and the timing gate"),
    (2, f"{REGRESS} --baseline x.pkl --baseline-tree bus", "--baseline-tree: expected a checkout"),
    (2, f"{BISECT} --model x.pkl", "--bisect: expected no --model"),
    (2, f"{BISECT} --update", "--bisect: expected neither --update"),
    (2, f"{BISECT} --explain", "--bisect: expected neither --update nor --explain"),
    (2, f"{BISECT} {GATE}", "nor gates with it"),
    (2, f"{DUMP} --service noSuch", "noSuch"),
    (2, f"{DUMP} --field vEgo", "--field: expected --service"),
    (2, f"{DUMP} --service carState --field speed", "--field speed: expected a field of carState"),
    (2, f"{DUMP} --format npz", "--format npz: expected --output"),
    (2, f"{DUMP} --from 5 --to 2", "--to: expected more than the 5 s of --from, found 2"),
    (2, f"{DUMP} --from 900 --output o.csv", "expected messages from 900 s on in a.rlog, found"),
    (2, f"{DUMP} --service can --output o.npz", "expected messages of can in a.rlog, found none"),
    (2, f"{DUMP} --service can", "expected messages of can in a.rlog, found none"),
    (4, "inspect empty.rlog --dump --output o.csv", "found an empty file"),
    (2, f"{DUMP} --nodes", "--nodes is not for logs"),
    (2, "inspect a.rlog --service carState", "needs --dump"),
    (2, "inspect", "expected a file or --schema DIR, found neither"),
    (2, "inspect a.rlog --schema .", "FILE: expected without --schema, found both"),
    (2, "inspect --schema . --from 1", "--from: expected without --schema, found both"),
    (2, "inspect a.rlog --from 0", "needs --dump"),
    (2, "inspect a.rlog --output x.csv", "needs --dump"),
    (2, "inspect relu.onnx --dump", "--dump needs an event log, found a file of kind onnx"),
    (2, "inspect good.pkl --nodes", "--nodes needs an ONNX model"),
    (2, "inspect good.pkl --bind n=1", "--bind needs an ONNX model"),
    (2, "inspect --schedule relu.onnx --nodes", "--nodes"),
    (2, "inspect --schedule relu.onnx --entry walk", "--entry walk: expected one of run"),
    (2, "inspect relu.onnx --entry run", "--entry needs --schedule"),
    (2, "inspect relu.onnx --viz out.html", "--viz needs --schedule"),
    (2, "inspect --schedule a.rlog.bz2", "found a log"),
    (2, "compile relu.onnx -o o.pkl --viz o.pkl", "expected another file"),
    (2, "compile relu.onnx -o o.pkl --bind n=0", "--bind n=0: expected a size from 1 to"),
    (2, "exec relu.onnx --outputs o.npz", "expected --inputs NPZ or --random, found neither"),
    (2, "exec relu.onnx --random --inputs in.npz", "--random, found both"),
    (2, "exec good.pkl --inputs in.npz --seed 1", "--seed: expected with --random only"),
    (2, "exec good.pkl --random --bind n=1", "--bind: expected an ONNX model"),
    (4, "exec relu.onnx --random --dump relu", "expected the name of a node or of its output"),
    (2, "exec plain.pkl --random --dump /sum", "found an artifact with it inside sum;"),
    (2, "exec plain.pkl --random --dump /no", "found an artifact with no kernel that computes it"),
    (2, "compile relu.onnx -o o.pkl --tune 0", "--tune: expected a number above 0"),
    (2, "compile relu.onnx relu.onnx -o o.pkl --bind n=2", "--constant need a plain model"),
    (2, "bench --against tensorrt relu.onnx", PEERS),
    (2, "bench --against , relu.onnx", "expected names of peers"),
    (2, "bench --against onnxruntime relu.onnx --threads 0", "--threads: expected a whole"),
    (2, "bench --against onnxruntime relu.onnx --blocks 0", "--blocks: expected a whole"),
    (2, "bench --against onnxruntime relu.onnx relu.onnx --bind n=1", "--bind"),
    (2, "bench good.pkl --bind n=1", "--bind and --constant need an ONNX model"),
    (2, "bench relu.onnx --inputs text", "text: expected an .npz of named arrays"),
    (2, "bench relu.onnx --iters 1e9", "--iters: expected a whole number from 1"),
    (2, "bench --daemon 5", "expected the artifact as --model"),
    (4, f"{DAEMON} --monitoring good.pkl", "a driver monitoring artifact, found one of kind 'dri"),
    (4, f"{DAEMON} --camera 320x240", "found 320x240 with 144384; compile the models again with"),
    (4, "bench --daemon 1 --model plain.pkl", "expected a driving artifact"),
    (2, "bench --host", "expected the artifact as --model"),
    (2, "bench --start 1", "expected the artifact as --model"),
    (2, "bench --start 0 --model good.pkl", "--start: expected a whole number from 1"),
    (2, "bench", "bench FILE: expected an artifact or ONNX models, found 0 files"),
    (2, "bench --paced plain.pkl --beside noise", "found 'noise'"),
    (4, "bench --log none", "none: expected an artifact, an ONNX model or an event log, found no"),
    (2, "demo --model x.pkl --rate-hz 20 --bus udp://localhost", "got 'udp://localhost'"),
    (2, "demo --frames 0", "--frames: expected"),
    (2, "demo --frames 36001", "--frames: expected"),
    (2, "demo --rate-hz 21", "--rate-hz: expected"),
    (2, "subscribe --timeout=0", f"--timeout: {SECONDS}"),
    (2, "subscribe modelV3", "modelV3"),
    (2, "subscribe --field frameId", "--field needs --json"),
    (2, "subscribe carState --json --field speed", "--field speed: expected a field of carState"),
    (2, "subscribe --count 0", "error: --count: expected a whole number from 1"),
    (1, "subscribe can --bus ipc://bus --timeout 0.2", "expected a message of can within 0.2 s"),
    (1, "status --bus ipc://bus --timeout 0.2", "error: bus ipc://bus: expected a message of"),
    (2, "status --timeout=0", f"--timeout: {SECONDS}"),
    (2, f"{UNIT} --bin modeld", "--bin"),
    (2, f"{UNIT} --bin '/opt/a b'", "--bin"),
    (2, f"{UNIT} --bin /bin/modeld --user 'a b'", "--user"),
    (2, f"{UNIT} --bin /bin/modeld --config x", "--config"),
    (2, "make-model models --seed -1", "--seed"),
    (2, "make-model text", "text"),
    (4, "models list --store none", "expected a store of models, found none; modeld models add"),
    (4, "models select ex --store none", "expected a store of models, found none"),
    (4, "models select ../ex --store none", "name: expected 1 to 64"),
    (4, "models add good.pkl --name X --version / --store none", "found 'X'; version: expected"),
    (4, "models add no.pkl --name x --version 1 --store bus", "an artifact, found no such"),
    (4, "selftest cut.pkl", "the file is truncated"),
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
    node = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(model_of([node], [value("x", (4,))], [value("y", (4,))]), tmp_path / "relu.onnx")
    tiny.write(tmp_path / "plain.pkl")
    for name in ("x.pkl", "a.pkl", "b.pkl"):
        shutil.copy(tmp_path / "plain.pkl", tmp_path / name)
    (tmp_path / "a.rlog.bz2").write_bytes(b"BZh9" + bytes(60))
    (tmp_path / "bus").mkdir()
    (tmp_path / "empty.rlog").write_bytes(b"")
    np.savez(tmp_path / "in.npz", x=np.zeros(4, np.float32))
    (tmp_path / "text").write_bytes(b"this is no log at all, whatever it says\n" * 9)
    return tmp_path


@pytest.mark.parametrize(("code", "words", "text"), ROWS, ids=[row[1] for row in ROWS])
def test_what_cannot_be_is_one_line(
    place: Path, video: Path, modeld: Modeld, code: int, words: str, text: str
) -> None:
    def files() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in place.iterdir()}

    before = files()
    words = words.replace("VIDEO", str(video)).replace("SERVER", f"refused-{os.getpid()}")
    with contextlib.chdir(place):
        said = modeld.refused(code, text, *shlex.split(words))
    assert said.out == ""
    assert files() == before
