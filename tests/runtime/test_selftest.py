"""The self-test at load: a driver that miscompiles, a stale binary, a flipped weight.

The program is that of `tiny`, and what it must give is computed here by hand. All of it runs on the
real device: what the compiler of a broken driver would have made is a binary of another source.
"""

import functools
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import ArtifactError, InputError, SelfTestError
from runtime.format.artifact import from_memory, read_artifact, write_artifact
from runtime.format.parts import MAX_VALUES, ExpectedValues, TestVector, plain_self_test, positions
from runtime.opencl.device import choose_device
from runtime.run.entry import TensorSpec
from runtime.run.executor import build_binaries, load_program
from runtime.run.program import Program
from runtime.run.selftest import run_self_test, seeded_inputs, seeded_states, self_test
from tests.runtime import tiny

SEED = 7
F32, U8, I32 = (np.dtype(name) for name in ("float32", "uint8", "int32"))
INPUTS = [TensorSpec("x", (4,), F32), TensorSpec("frame", (100,), U8)]
STATES = [TensorSpec("queue", (3, 4), F32)]

Manifest = dict[str, Any]


def vector(entry: str = "run") -> TestVector:
    """What the program of `tiny` gives for the seed."""
    given = seeded_inputs(INPUTS, SEED)
    queue = seeded_states(STATES, SEED)["queue"]
    after = np.concatenate([queue[1:], given["x"][None]])
    y = 2 * after.sum(0) + tiny.WEIGHT
    count = given["frame"][:50].sum(keepdims=True).astype(np.int32)
    arrays = [("state", "queue", after, 1e-4), ("output", "y", y, 1e-4)]
    arrays += [("output", "count", count, 0.0)]
    expected = (
        ExpectedValues(kind, name, array.shape, array.reshape(-1), tolerance, 0.0)
        for kind, name, array, tolerance in arrays
    )
    return TestVector(SEED, entry, tuple(expected))


Made = Callable[..., Manifest]


@functools.cache
def binaries(made: Made, old: str = "", new: str = "") -> list[bytes]:
    """Return binaries of the program, with other text in its sources."""
    raw = made()
    assert any(old in p["source"] for p in raw["programs"])
    for program in raw["programs"]:
        program["source"] = program["source"].replace(old, new)
    return build_binaries(raw, tiny.data_blob())


def carrying(made: Made = tiny.manifest, old: str = "", new: str = "") -> Manifest:
    """Return the program with a self-test, and with binaries of this device."""
    raw, info = made(self_test=plain_self_test((vector(),))), choose_device().info
    for program, binary in zip(raw["programs"], binaries(made, old, new), strict=True):
        program["binary"] = binary
    return tiny.altered(raw, {"target/device": info.name, "target/driver": info.driver})


def loaded(raw: Manifest, path: Path, data: bytes = b"") -> Program:
    """Write the artifact, which makes its digests right, and load it."""
    write_artifact(path, raw, data or tiny.data_blob())
    return load_program(path)


BOTH = pytest.mark.parametrize("made", [tiny.manifest, tiny.megakernel_manifest])


@BOTH
def test_a_sound_program_passes_and_is_left_as_it_was_loaded(made: Made, tmp_path: Path) -> None:
    with loaded(carrying(made), tmp_path / "a.pkl") as program:
        report = self_test(program)
        assert (report.runs, report.passed) == (1, True)
        assert str(report).startswith("self-test passed: 1 runs, 17 values")
        assert [d.name for d in report.deviations] == ["queue", "y", "count"]
        assert not program.state("queue").any()
        assert self_test(program).deviations == report.deviations
        assert self_test(program, limit=0).runs == 0


def test_an_artifact_without_one_says_so(tmp_path: Path) -> None:
    for changes in ({}, {"self_test": tiny.GONE}):
        with loaded(tiny.altered(tiny.manifest(), changes), tmp_path / "a.pkl") as program:
            assert str(self_test(program)) == "no self-test"
            assert self_test(program).runs == 0


@BOTH
@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The compiler of a driver has made another factor of 2.
        ("2.0f * total", "2.01f * total"),
        # The binary is that of the program before the queue got its third row.
        ("total[i] = queue[i] + queue[4 + i]", "total[i] = queue[4 + i]"),
    ],
)
def test_a_driver_that_miscompiles_and_a_stale_binary_are_found(
    made: Made, old: str, new: str, tmp_path: Path
) -> None:
    with (
        loaded(carrying(made, old, new), tmp_path / "a.pkl") as program,
        pytest.raises(SelfTestError) as caught,
    ):
        self_test(program)
    assert caught.value.exit_code == 4
    text = str(caught.value)
    for part in ("tiny: self-test on", "entry 'run', seed 7: output 'y' at [", "tolerance 1e-04"):
        assert part in text
    assert "do not drive with it" in text
    assert text.isprintable()


def flipped(at: int, bit: int) -> bytes:
    data = bytearray(tiny.data_blob())
    (word,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, word ^ 1 << bit)
    return bytes(data)


@pytest.mark.parametrize("bit", [31, 30, 23, 16])
def test_a_flipped_weight_is_found(bit: int, tmp_path: Path) -> None:
    with (
        loaded(carrying(), tmp_path / "a.pkl", flipped(4, bit)) as program,
        pytest.raises(SelfTestError, match=r"output 'y' at \[1\]"),
    ):
        self_test(program)


def test_a_flip_within_the_tolerance_is_not_found(tmp_path: Path) -> None:
    with loaded(carrying(), tmp_path / "a.pkl", flipped(4, 0)) as program:
        assert self_test(program).passed


def test_what_is_not_finite_fails_and_is_null_in_json(tmp_path: Path) -> None:
    data = struct.pack("<f", float("nan")) + tiny.data_blob()[4:]
    with loaded(carrying(), tmp_path / "a.pkl", data) as program:
        report = run_self_test(program)
        assert not program.state("queue").any()
    assert not report.passed
    assert report.worst is not None
    assert report.worst.index == (0,)
    row = next(r for r in report.plain()["deviations"] if r["name"] == "y")
    assert (row["found"], row["deviation"], row["beyond"]) == (None, None, 1)


def test_binaries_are_taken_of_a_program_that_passes() -> None:
    raw = tiny.manifest(self_test=plain_self_test((vector(),)))
    raw["programs"][0]["source"] = tiny.SOURCE.replace("2.0f", "3.0f")
    with pytest.raises(SelfTestError, match="output 'y'"):
        build_binaries(raw, tiny.data_blob())


@pytest.mark.parametrize(
    ("by", "share", "passes"), [(1, 0.0, True), (2, 0.0, False), (2, 1.0, True)]
)
def test_an_integer_may_be_off_as_its_bound_says(
    by: int, share: float, passes: bool, tmp_path: Path
) -> None:
    *others, last = vector().expected
    count = replace(last, values=last.values + by, tolerance=1.0, share=share)
    changed = TestVector(SEED, "run", (*others, count))
    raw = tiny.manifest(self_test=plain_self_test((changed,)))
    with loaded(raw, tmp_path / "a.pkl") as program:
        assert run_self_test(program).passed is passes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": 2}, r"self_test\.rule: 2, this version knows 1"),
        ({"vectors": {}}, r"self_test\.vectors: expected list"),
        ({"vectors": [{}] * 17}, r"self_test\.vectors: 17 items"),
        ({"entry": "walk"}, r"vectors\[0\]\.entry: there is no entry 'walk'"),
        ({"seed": -1}, r"vectors\[0\]\.seed: -1 is outside"),
        ({"entry": "prepare"}, r"expected\[1\]\.name: there is no output 'y'"),
        ({"kind": "weight"}, r"expected\[0\]\.kind: unknown value 'weight'"),
        ({"values": b"123"}, r"expected\[0\]\.values: 3 bytes, expected 12 values of float32"),
        ({"values": b"\xff" * 48}, r"expected\[0\]\.values: not all are finite"),
        ({"tolerance": -1.0}, r"expected\[0\]\.tolerance: -1.0"),
        ({"tolerance": float("inf")}, r"expected\[0\]\.tolerance: inf"),
        ({"share": float("nan")}, r"expected\[0\]\.share: nan"),
    ],
)
def test_a_wrong_field_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    raw = plain_self_test((vector(),))
    first = raw["vectors"][0]
    for level in (raw, first, first["expected"][0]):
        level.update({key: value for key, value in change.items() if key in level})
    with pytest.raises(ArtifactError, match=message):
        from_memory(tiny.manifest(self_test=raw), tiny.data_blob())


def test_vectors_are_the_same_after_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    write_artifact(path, tiny.manifest(self_test=plain_self_test((vector(),))), tiny.data_blob())
    found = read_artifact(path).manifest.self_test
    assert plain_self_test(found) == plain_self_test((vector(),))
    assert found[0].expected[1].values.dtype == np.float32


def test_states_are_written_as_they_are_read(tmp_path: Path) -> None:
    with tiny.load(tmp_path / "a.pkl") as program:
        value = np.arange(12, dtype=np.float32).reshape(3, 4)
        program.set_state("queue", value)
        np.testing.assert_array_equal(program.state("queue"), value)
        with pytest.raises(InputError, match=r"state 'queue': expected float32\[3, 4\]"):
            program.set_state("queue", value.astype(np.float64))
        with pytest.raises(InputError, match="state 'queue'"):
            program.set_state("queue", np.zeros((4, 3), np.float32).T)
        with pytest.raises(InputError, match="no state 'x'; it has: queue"):
            program.set_state("x", value)


I64, BOOL = np.dtype("int64"), np.dtype("bool")
PORTS = [
    TensorSpec("f", (3,), F32), TensorSpec("u", (5,), U8), TensorSpec("i", (6,), I64),
    TensorSpec("b", (6,), BOOL),
    TensorSpec("road_frame", (1 << 20,), U8, partial=True), TensorSpec("road_geometry", (4,), I32),
    TensorSpec("road_transform", (3, 3), F32), TensorSpec("desire", (8,), F32),
]  # fmt: skip
# The first numbers of each, all of the transform.
RULE_1: dict[str, list[float]] = {
    "f": [-0.10040376335382462, 1.5257196426391602, 0.34222909808158875],
    "u": [79, 198, 36], "i": [1, 1, 0], "b": [False, False, True],
    "road_frame": [78, 72, 78], "road_geometry": [640, 400, 704],
    "road_transform": [
        0.4212695360183716, -0.0003913879336323589, 11.00927734375,
        8.36181643535383e-05, 0.409829705953598, 9.057373046875,
        9.12475570657989e-06, 5.389862053561956e-06, 1.0,
    ],
    "desire": [0, 0, 0],
}  # fmt: skip


def test_the_rule_stays_what_it_is() -> None:
    # Artifacts that exist rely on each of these numbers.
    made = seeded_inputs(PORTS, 1)
    assert {
        name: made[name].reshape(-1)[: len(row)].tolist() for name, row in RULE_1.items()
    } == RULE_1
    assert made.keys() == RULE_1.keys()
    assert made["road_frame"].shape == (704 * 600,)
    assert made["road_geometry"].tolist() == [640, 400, 704, 704 * 400]
    assert made["desire"].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


def test_floats_are_near_a_standard_normal() -> None:
    values = seeded_states([TensorSpec("s", (100_000,), F32)], 4)["s"]
    assert abs(float(values.mean())) < 0.02
    assert abs(float(values.std()) - 1) < 0.02
    assert np.abs(values).max() < 3.5


@pytest.mark.parametrize("room", [640 * 600, 100_000, 5_000, 96])
def test_a_picture_fits_its_room_and_is_smooth(room: int) -> None:
    ports = [TensorSpec("a_frame", (room,), U8, partial=True), TensorSpec("a_geometry", (4,), I32)]
    made = seeded_inputs(ports, 2)
    width, height, stride, offset = made["a_geometry"].tolist()
    assert offset + stride * height // 2 == len(made["a_frame"]) <= room
    assert width <= stride
    assert height % 2 == 0
    if room == 640 * 600:
        # So that a position rounded to the next 1/32 pixel changes a sample by 1 at most.
        rows = made["a_frame"].reshape(600, 640).astype(int)
        assert np.abs(np.diff(rows, axis=0)).max() <= 32
        assert np.abs(np.diff(rows, axis=1)).max() <= 32


def test_kept_positions_are_spread_over_all_of_an_array() -> None:
    assert positions(0).tolist() == []
    assert positions(5).tolist() == [0, 1, 2, 3, 4]
    many = positions(10**6)
    assert len(many) == MAX_VALUES
    assert np.diff(many).min() >= 244
    assert many[-1] > 10**6 - 260
