"""Reference files, who may write them, and messages in them as steps of their tolerance."""

import json
import lzma
import math
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event, read_event
from tests.tools.regress.conftest import full_disk
from tools.compare.running import SHIFT_SHARE
from tools.errors import ReferenceFormatError, RegressionReferenceError, ToolError
from tools.playback.outcome import FrameTable
from tools.regress.job import DriveName, JobResult, Launches, Measured
from tools.regress.judge.leaves import (
    PREDICTIONS,
    STEPS_OF_TOLERANCE,
    Scale,
    decode_column,
    encode_column,
    join_event,
    split_event,
)
from tools.regress.judge.packing import FieldRule, content_digest, pack, rule_of, unpack
from tools.regress.judge.reference import (
    ReferenceStore,
    from_bytes,
    histogram,
    key_of,
    make_reference,
    to_bytes,
)
from tools.regress.judge.references import TimingReferences
from tools.regress.run_facts import ProgramFacts
from tools.regress.time.timing import Interval, TimingResult

RESULT = JobResult(
    key="k" * 64,
    drive=DriveName("route|2023--5", "openpilot", "d" * 64, 20.0),
    outputs=b"packed" * 50,
    digest="e" * 64,
    model="a" * 64,
    interface="split-2025",
    device_class="cpu-x86_64",
    launches={"run": Launches(3, 3), "prepare": Launches(1, 1)},
    program=ProgramFacts("f" * 64, {"w0 of /conv": "0123456789abcdef"}),
    measured=Measured(execution_s=(0.0, 0.010, 0.011, 0.030), environment={"device": "some CPU"}),
)
REFERENCE = make_reference(RESULT, {"reason": "it is better", "device": "some CPU"})


def test_a_reference_comes_back_and_is_said_to_be_damaged_anywhere(tmp_path: Path) -> None:
    data = to_bytes(REFERENCE)
    assert from_bytes(data, tmp_path / "x") == REFERENCE
    assert b'"reason": "it is better"' in data  # readable without a tool
    assert to_bytes(from_bytes(data, tmp_path)) == data
    spoilt = [
        data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        for place in range(0, len(data), 7)
    ]
    for one in (*spoilt, *(data[:size] for size in range(0, len(data), 11))):
        with pytest.raises(ReferenceFormatError, match="expected"):
            from_bytes(one, tmp_path / "file.reference")
    other = data.replace(b'"format": 1', b'"format": 7', 1)
    with pytest.raises(ReferenceFormatError, match=r"expected a reference of format 1, found .* 7"):
        from_bytes(other, tmp_path / "x")


def test_a_reference_is_found_by_its_key_whatever_the_drive_is_called(tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path / "references")
    path = store.write(REFERENCE)
    assert path.name == f"route-2023-5.{'d' * 12}.{'a' * 12}.cpu-x86_64.reference"
    assert store.find(key_of(RESULT), "another name") == REFERENCE
    renamed = replace(REFERENCE, drive=replace(REFERENCE.drive, name="elsewhere"))
    assert (store.write(renamed), len(list(tmp_path.glob("references/*")))) == (path, 1)
    # A file that was renamed says its name.
    path = ReferenceStore(tmp_path).write(REFERENCE)
    path.rename(tmp_path / "mine.reference")
    with pytest.raises(ToolError, match=f"in another file; rename that to {path.name}"):
        ReferenceStore(tmp_path).find(REFERENCE.key, "a drive")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "b" * 64}, "another model, bbbbbbbbbbbb instead of aaaaaaaaaaaa"),
        ({"device_class": "gpu-qualcomm"}, "class of devices, gpu-qualcomm instead of cpu-x86_64"),
        ({"drive": "c" * 64}, "another content of the drive, cccccccccccc instead of dddddddddddd"),
        ({"interface": "supercombo"}, "another interface, supercombo instead of split-2025"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    store = ReferenceStore(tmp_path)
    store.write(replace(REFERENCE, key=replace(REFERENCE.key, **changes)))
    with pytest.raises(RegressionReferenceError) as caught:
        store.find(key_of(RESULT), "route|2023--5")
    assert said in str(caught.value)
    # A model is judged against another one; what comes of --update compares nothing.
    assert ("--update" in str(caught.value)) == ("model" not in changes)
    assert caught.value.exit_code == 4


def test_no_reference_at_all_and_none_of_this_drive(tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path / "none")
    with pytest.raises(RegressionReferenceError, match="found none;"):
        store.find(key_of(RESULT), "route|2023--5")
    key = replace(REFERENCE.key, drive="c" * 64)
    store.write(replace(REFERENCE, key=key, drive=replace(REFERENCE.drive, name="other")))
    with pytest.raises(RegressionReferenceError, match=r"found 1 of others \(other\)"):
        store.find(key_of(RESULT), "route|2023--5")


def test_only_one_run_writes(tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path / "references")
    with (
        store.lock(),
        pytest.raises(ToolError, match="found another run that writes here"),
        ReferenceStore(tmp_path / "references").lock(),
    ):
        pytest.fail("two runs hold the lock")
    with store.lock():
        pass
    assert not list((tmp_path / "references").iterdir())


def test_a_full_disk_leaves_the_old_reference(tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path)
    path = store.write(REFERENCE)
    before = path.read_bytes()
    with (
        full_disk(),
        pytest.raises(ToolError, match="No space left on device; the previous file is"),
    ):
        store.write(replace(REFERENCE, digest="f" * 64))
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_the_histogram_has_every_frame_in_which_the_model_ran() -> None:
    found = histogram((0.0, 0.010, 0.011, 0.030))
    assert sum(found.counts) == 3
    assert found.start_ms == pytest.approx(10.0)
    assert found.median_ms == pytest.approx(11.0)
    assert histogram((0.0,)).counts == ()
    rng = np.random.default_rng(0)
    times = tuple((0.02 + 0.001 * rng.standard_normal(500)).tolist())
    assert sum(histogram((*times, 1.0)).counts) == 501


def test_timings_of_devices_live_side_by_side(tmp_path: Path) -> None:
    ratio = Interval(7.5, 7.4, 7.6, (7.4, 7.6))
    result = TimingResult("first CPU", "processor", ratio, None, 25.0, 0.001)
    TimingReferences(tmp_path, "a" * 64, "cpu-x86_64").write("run", result, {"reason": "new"})
    other = replace(result, device="second CPU", waiting=None)
    TimingReferences(tmp_path, "a" * 64, "cpu-x86_64").write("run", other, {})
    found = TimingReferences(tmp_path, "a" * 64, "cpu-x86_64")
    assert found.devices() == ["first CPU", "second CPU"]
    kept = found.find("first CPU", "run")
    assert kept is not None
    assert (kept.ratio, kept.waiting, kept.provenance) == (ratio, 0.001, {"reason": "new"})
    assert found.find("first CPU", "prepare") is None
    assert TimingReferences(tmp_path, "b" * 64, "cpu-x86_64").find("first CPU", "run") is None
    found.path.write_text("{")
    with pytest.raises(ReferenceFormatError, match="expected timings of references"):
        TimingReferences(tmp_path, "a" * 64, "cpu-x86_64")


SCALES = [
    Scale(1e-4, 1e-5),
    Scale(2e-8, 2e-5),
    Scale(5e-6, 0.0),
    Scale(0.0, 1e-3),
    Scale(1.0, 0.5),
    Scale(3e-7, 0.9),
]


def _values(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-12, 6, 4000)
    return np.concatenate([sizes, -sizes, [0.0, 1.0, -1.0, 1e-300, 5e-324]])


@pytest.mark.parametrize("scale", SCALES)
def test_a_value_moves_by_at_most_half_a_step_and_steps_rise_with_it(scale: Scale) -> None:
    values = np.sort(_values(1))
    steps, beyond = scale.steps(values)
    assert not beyond.any()
    allowed = np.maximum(scale.absolute, scale.relative * np.abs(values))
    # Where no absolute difference is allowed, values of 2^-40 and less are as good as zero.
    allowed = np.maximum(allowed, scale.relative * 2.0**-40)
    moved = np.abs(scale.values(steps) - values)
    assert (moved <= allowed / STEPS_OF_TOLERANCE / 2 * (1 + 1e-12)).all()
    assert (np.diff(steps) >= 0).all()
    assert (scale.steps(-values)[0] == -steps).all()
    # Steps are their own rounding.
    assert (scale.steps(scale.values(steps))[0] == steps).all()
    assert scale.values(np.zeros(1, np.int64))[0] == 0.0


def test_neighbouring_numbers_of_steps_are_at_most_a_fifth_of_the_tolerance_apart() -> None:
    scale = Scale(1e-4, 1e-5)
    low, high = (int(scale.steps(np.array([value]))[0][0]) for value in (0.0, 40.0))
    values = scale.values(np.arange(low, high))
    allowed = np.maximum(1e-4, 1e-5 * values[1:])
    assert (np.diff(values) <= allowed / STEPS_OF_TOLERANCE).all()
    assert (np.diff(values) > 0).all()
    # Rounding alone is never a systematic shift.
    assert 1 / STEPS_OF_TOLERANCE <= SHIFT_SHARE


def test_exact_fields_keep_every_bit_and_wild_values_have_no_step() -> None:
    values = np.array([0.1, -0.0, math.nan, math.inf, 1e308])
    steps, beyond = Scale(0.0, 0.0).steps(values)
    assert not beyond.any()
    assert Scale(0.0, 0.0).values(steps).tobytes() == values.tobytes()
    assert Scale(1e-3, 1e-3).steps(values)[1].tolist() == [False, False, True, True, True]
    assert Scale(1e-3, 0.0).steps(values)[1].tolist() == [False, False, True, True, True]
    most = np.array([2**63 - 1, -(2**63)])
    assert np.isnan(Scale(1e-3, 1e-3).values(most)).all()


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 1), (1, 5), (40, 33)])
def test_columns_come_back(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    limits = np.iinfo(np.int64)
    walks = np.cumsum(rng.integers(-9, 9, shape), axis=0)
    curves = np.cumsum(np.cumsum(rng.integers(-3, 3, shape), axis=1), axis=1)
    wild = rng.integers(limits.min, limits.max, shape, endpoint=True)
    for values in (walks, curves, wild, np.zeros(shape, np.int64), np.full(shape, limits.min)):
        prediction, width, data = encode_column(values)
        assert (decode_column(data, shape, prediction, width) == values).all()


def test_columns_are_predicted_and_have_their_length() -> None:
    places = np.arange(33)
    rows = [(7 * frame + 3 * places + places**2) for frame in range(20)]
    prediction, width, _ = encode_column(np.array(rows, np.int64))
    # Frames a constant apart, and the points of the first one on a parabola.
    assert PREDICTIONS[prediction] == (1, 2)
    assert width == 1
    with pytest.raises(ReferenceFormatError, match="expected 6 bytes, found 5"):
        decode_column(b"12345", (2, 3), 0, 1)
    with pytest.raises(ReferenceFormatError, match="prediction 99"):
        decode_column(b"", (0, 0), 99, 1)


def _model(frame: int, *, y: float = 1.5, execution_s: float = 0.02) -> bytes:
    event = new_event("modelV2", mono_time_ns=10**18 + frame, valid=frame > 0)
    model = event.modelV2
    model.frameId, model.timestampEof = frame, 2**63 + frame
    model.modelExecutionTime = execution_s
    model.position.x = [0.0, 1.0 + frame, 200.0]
    model.position.y = [y, y * y, math.nan]
    lines = model.init("laneLines", 2)
    for number, line in enumerate(lines):
        line.y = [number + 0.25, -3.0]
    model.confidence = "green" if frame % 2 else "yellow"
    model.meta.hardBrakePredicted = frame == 3
    model.rawPredictions = bytes([frame, 255])
    return bytes(event.to_bytes())


def _table(count: int) -> FrameTable:
    ids = np.arange(count, dtype=np.int64)
    return FrameTable(
        moment=ids + 5,
        frame_id=ids,
        dropped=ids * 0,
        published=np.ones(count, np.bool_),
        valid=ids > 0,
        execution_s=np.full(count, 0.01),
        input_crc={"road_frame": (ids * 7919).astype(np.uint32)},
    )


def test_a_message_comes_back_from_its_leaves() -> None:
    event = read_event(_model(3))
    leaves = split_event(event, lambda *_: False)
    values = {path: iter(row) for path, row in leaves.values.items()}
    again = read_event(join_event(json.loads(leaves.skeleton), values))
    assert str(again) == str(event)
    # Its digest is what references have stored.
    event = new_event("cameraOdometry", mono_time_ns=7, valid=True)
    event.cameraOdometry.frameId = 5
    leaves = split_event(read_event(event.to_bytes()), lambda *_: False)
    assert json.loads(leaves.skeleton)["valid"] == "b"
    text = json.dumps(json.loads(leaves.skeleton), separators=(",", ":")).encode()
    rows = b"".join(repr(row).encode() for row in leaves.values.values())
    assert set(leaves.kinds.values()) == {"i", "b"}
    assert leaves.digest() == zlib.crc32(text + rows)


def test_packed_messages_are_within_the_tolerance_and_their_table_is_exact() -> None:
    messages = [_model(frame, y=0.1 * frame + 1) for frame in range(6)]
    found = unpack(pack(messages, _table(6), rule_of))
    assert found.services == ("modelV2",) * 6
    for old, new in zip(messages, found.messages, strict=True):
        event, other = read_event(old), read_event(new)
        before, now = event.modelV2, other.modelV2
        assert (other.logMonoTime, other.valid) == (event.logMonoTime, event.valid)
        assert (now.timestampEof, now.modelExecutionTime) == (before.timestampEof, 0.0)
        assert str(now.confidence) == str(before.confidence)
        assert now.meta.hardBrakePredicted == before.meta.hardBrakePredicted
        assert now.rawPredictions == before.rawPredictions
        assert list(now.position.y)[:2] == pytest.approx(list(before.position.y)[:2], abs=1e-5)
        assert math.isnan(now.position.y[2])
        assert list(now.laneLines[1].y) == [1.25, -3.0]
    assert found.frames.moment.tolist() == [5, 6, 7, 8, 9, 10]
    assert found.frames.valid.tolist() == [False, *[True] * 5]
    assert found.frames.input_crc["road_frame"].tolist() == [7919 * i for i in range(6)]
    assert not found.frames.execution_s.any()


def test_measured_times_change_nothing_and_a_single_bit_changes_the_digest() -> None:
    slow = [_model(frame, execution_s=0.5) for frame in range(4)]
    fast = [_model(frame) for frame in range(4)]
    assert pack(slow, _table(4), rule_of) == pack(fast, _table(4), rule_of)
    nearly = float(np.nextafter(np.float32(1.5), np.float32(2)))
    moved = [_model(frame, y=nearly if frame == 2 else 1.5) for frame in range(4)]
    one, other = (unpack(pack(m, _table(4), rule_of)) for m in (fast, moved))
    assert (one.digests != other.digests).tolist() == [False, False, True, False]
    assert content_digest(pack(fast, _table(4), rule_of)) != content_digest(
        pack(moved, _table(4), rule_of)
    )


def test_messages_of_several_shapes_keep_their_order() -> None:
    odd = new_event("cameraOdometry", mono_time_ns=7, valid=True)
    odd.cameraOdometry.trans = [1.0, 2.0, 3.0]
    short = new_event("modelV2", mono_time_ns=8, valid=True)
    messages = [_model(0), odd.to_bytes(), short.to_bytes(), _model(1)]
    found = unpack(pack(messages, _table(2), rule_of))
    assert found.services == ("modelV2", "cameraOdometry", "modelV2", "modelV2")
    assert [read_event(data).logMonoTime for data in found.messages] == [10**18, 7, 8, 10**18 + 1]
    # A drive may have none.
    found = unpack(pack([], _table(0), rule_of))
    assert found.messages == ()
    assert found.frames.frame_id.size == 0


def spoilt(data: bytes, rng: np.random.Generator, count: int) -> bytes:
    found = bytearray(data)
    for place in rng.integers(0, len(data), count):
        found[place] = rng.integers(0, 256)
    return bytes(found)


def test_damaged_bytes_are_one_kind_of_error() -> None:
    data = pack([_model(frame) for frame in range(4)], _table(4), rule_of)
    rng = np.random.default_rng(4)
    damaged = [spoilt(data, rng, 3) for _ in range(150)]
    for one in (*damaged, *(data[:size] for size in range(0, len(data), 37))):
        if one != data:
            with pytest.raises(ReferenceFormatError):
                unpack(one)
    # Below the compression no checksum stops what lies about itself.
    content = lzma.decompress(data)
    for _ in range(300):
        with suppress(ReferenceFormatError):
            unpack(lzma.compress(spoilt(content, rng, 2), lzma.FORMAT_XZ))


def test_what_is_measured_is_not_kept() -> None:
    assert rule_of("modelV2", "modelExecutionTime").measured
    assert not rule_of("modelV2", ".logMonoTime").measured
    assert rule_of("modelV2", "laneLines[].y") == FieldRule(Scale(1e-4, 1e-5))
