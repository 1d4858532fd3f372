"""Reference files: what is in them, what is said when there is none, and who may write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tools.regress.conftest import full_disk
from tools.errors import ToolError
from tools.regress.errors import ReferenceFormatError, RegressionReferenceError
from tools.regress.job import DriveName, JobResult, Launches, Measured
from tools.regress.program_facts import ProgramFacts
from tools.regress.reference import (
    ReferenceStore,
    from_bytes,
    histogram,
    key_of,
    make_reference,
    to_bytes,
)
from tools.regress.timing import Interval, TimingResult
from tools.regress.timing_reference import TimingReferences

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
    data = to_bytes(REFERENCE)
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
    assert store.write(renamed) == path
    assert len(list(tmp_path.glob("references/*"))) == 1
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
    assert "--update" in str(caught.value)
    assert caught.value.exit_code == 4


def test_no_reference_at_all_and_none_of_this_drive(tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path / "none")
    with pytest.raises(RegressionReferenceError, match="found none at all"):
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
        pytest.raises(ToolError, match="No space left on device; what was there before is"),
    ):
        store.write(replace(REFERENCE, digest="f" * 64))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


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
