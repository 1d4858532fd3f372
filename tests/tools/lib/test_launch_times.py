"""Times of a profile on the schedule page: of the same kernels, or refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.describe.schedule import load_times
from tools.errors import FileKindError

MANIFEST: dict[str, Any] = {
    "name": "tiny",
    "kernels": [{"name": "a"}, {"name": "b"}],
    "entries": {"run": {"launches": [0, 1, 0]}},
}
ROWS = [{"name": name, "median_ms": ms} for name, ms in (("a", 0.5), ("b", 2), ("a", 0.25))]
PROFILE = {"entry": "run", "device": "a device", "per_kernel": ROWS}


def written(directory: Path, **changes: object) -> Path:
    """Write a profile with other values than usual."""
    path = directory / "profile.json"
    path.write_text(json.dumps({**PROFILE, **changes}))
    return path


def test_times_are_those_of_the_launches_in_their_order(tmp_path: Path) -> None:
    found = load_times(written(tmp_path), MANIFEST)["run"]
    assert (found.milliseconds, found.where) == ((0.5, 2.0, 0.25), "a device")
    assert (found.total, found.share(1)) == (2.75, 2.0 / 2.75)
    assert [found.text(at) for at in (0, 2)] == ["0.50 ms", "0.25 ms"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_kernel": None}, "expected times by kernel, found none; make it with: modeld bench"),
        ({"per_kernel": [1, 2, 3]}, "expected times by kernel"),
        ({"entry": "prepare"}, "expected an entry of run, found 'prepare'"),
        ({"per_kernel": ROWS[:2]}, "expected the 3 launches of tiny, found 2 of other kernels"),
        ({"per_kernel": [*ROWS[::-1][:2], {"name": "b"}]}, "found 3 of other kernels"),
        ({"per_kernel": [{**row, "median_ms": "1"} for row in ROWS]}, "expected median_ms"),
        ({"per_kernel": [{**row, "median_ms": -1} for row in ROWS]}, "expected median_ms"),
    ],
)
def test_what_is_no_profile_of_this_artifact_is_one_line(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(FileKindError) as raised:
        load_times(written(tmp_path, **changes), MANIFEST)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10_000])
def test_what_is_no_object_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(FileKindError, match=r"expected (one )?JSON.*; make it with"):
        load_times(path, MANIFEST)
    with pytest.raises(FileKindError, match=r"cannot be read: No such file.*; make it with"):
        load_times(tmp_path / "none.json", MANIFEST)
