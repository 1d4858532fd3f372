from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.drives.open_drive import DriveOptions, expand_drives, open_drive
from tools.drives.openpilot import expand
from tools.drives.routes import (
    RouteName,
    Selection,
    find_route,
    from_address,
    parse_route,
    split_selection,
)
from tools.errors import DriveError, UsageError
from tools.messages.camera import VideoCamera

DONGLE, OLD, NEW = "a2a0ccea32023010", "2023-07-27--13-01-19", "000001d4--2648a9a404"
FILES = ("rlog.zst", "fcamera.hevc", "ecamera.hevc")


def _segment(directory: Path, names: tuple[str, ...] = FILES) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_bytes(b"x")
    return directory


def _route(root: Path, pattern: str, numbers: range | list[int] = range(4)) -> Path:
    for number in numbers:
        _segment(root / pattern.format(number))
    return root


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{DONGLE}|{OLD}", (None, DONGLE, OLD)),
        (f"{DONGLE}_{OLD}", (None, DONGLE, OLD)),
        (f"{DONGLE}/{NEW}", (None, DONGLE, NEW)),
        (NEW, (None, None, NEW)),
        (OLD, (None, None, OLD)),
        (f"/data/{DONGLE}/{NEW}", ("/data", DONGLE, NEW)),
        (f"/{NEW}", ("/", None, NEW)),
        (f"data/here/{DONGLE}|{OLD}", ("data/here", DONGLE, OLD)),
        # Digits only: not a segment of a shorter name.
        ("00000001--1234567890", (None, None, "00000001--1234567890")),
        ("drive.mp4", None),
        (f"{DONGLE[:-1]}|{OLD}", None),
        (f"{DONGLE.upper()}|{OLD}", None),
    ],
)
def test_route_is_read_from_all_spellings(
    text: str, expected: tuple[str | None, str | None, str] | None
) -> None:
    assert parse_route(text) == (RouteName(*expected) if expected else None)


@pytest.mark.parametrize(
    ("text", "base", "selection"),
    [
        (f"{DONGLE}|{OLD}", f"{DONGLE}|{OLD}", Selection()),
        (f"{DONGLE}|{OLD}--5", f"{DONGLE}|{OLD}", Selection("5")),
        (f"{DONGLE}/{NEW}/12/", f"{DONGLE}/{NEW}", Selection("12")),
        (f"{NEW}/-1", NEW, Selection("-1")),
        (f"{NEW}/2:6", NEW, Selection("2:6")),
        (f"{NEW}/:3/q", NEW, Selection(":3", "q")),
        (f"{NEW}/0:10:2/a", NEW, Selection("0:10:2", "a")),
        (f"{NEW}/-2:", NEW, Selection("-2:")),
        (f"{NEW}--3/i", NEW, Selection("3", "i")),
        (f"{NEW}/r", NEW, Selection()),
        (f"{NEW}/", NEW, Selection()),
        ("some/dir/1:3", "some/dir", Selection("1:3")),
        ("00000001--1234567890", "00000001--1234567890", Selection()),
        ("00000001--1234567890--7", "00000001--1234567890", Selection("7")),
    ],
)
def test_segments_and_selector_are_split_off(text: str, base: str, selection: Selection) -> None:
    assert split_selection(text) == (base, selection)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("3", [3]),
        ("-1", [4]),
        ("7", [7]),
        ("1:3", [1, 2]),
        (":2", [0, 1]),
        ("3:", [3, 4]),
        ("-2:", [3, 4]),
        (":-3", [0, 1]),
        ("0:5:2", [0, 2, 4]),
        ("::-2", [4, 2, 0]),
        ("3:1:-1", [3, 2]),
        # A stated end is meant: what is not there is missed, not left out.
        ("3:7", [3, 4, 5, 6]),
    ],
)
def test_slices_count_as_python_does(text: str | None, numbers: list[int]) -> None:
    assert Selection(text).numbers(5) == numbers


@pytest.mark.parametrize("text", ["3:3", "-9", "0:5:0", "99999999999", "4:2", "-9:-8"])
def test_slices_that_select_nothing_are_refused(text: str) -> None:
    with pytest.raises(DriveError, match=r"expected .*, found"):
        Selection(text).numbers(5)


@pytest.mark.parametrize(
    "pattern",
    [
        f"{DONGLE}|{OLD}--{{}}",
        f"{DONGLE}_{OLD}--{{}}",
        f"{OLD}--{{}}",
        f"{OLD}/{{}}",
        f"{DONGLE}/{OLD}/{{}}",
        f"{DONGLE}/{OLD}--{{}}",
        f"{DONGLE}|{OLD}/{{}}",
        f"{DONGLE}_{OLD}/{{}}",
    ],
)
@pytest.mark.parametrize("with_dongle", [True, False])
def test_route_is_found_in_every_layout(tmp_path: Path, pattern: str, with_dongle: bool) -> None:
    _route(tmp_path, pattern)
    _segment(tmp_path / f"{NEW}--0")
    options = DriveOptions(data_dir=tmp_path)
    name = f"{DONGLE}|{OLD}" if with_dongle else OLD
    assert expand(name, options) == [f"{name}/0:4"]
    assert expand(f"{name}--2", options) == [f"{name}--2"]
    assert expand(f"{name}/-1/q", options) == [f"{name}--3/q"]
    assert expand(f"{name}/1:3", options) == [f"{name}/1:3"]
    # What was expanded stands for itself.
    assert expand(f"{name}/1:3/q", options) == [f"{name}/1:3/q"]
    assert expand(f"{tmp_path}/{name}/1:3", DriveOptions()) == [f"{tmp_path}/{name}/1:3"]


def test_flat_files_are_segments(tmp_path: Path) -> None:
    for number in range(3):
        for name in FILES:
            (tmp_path / f"{DONGLE}_{OLD}--{number}--{name}").write_bytes(b"x")
    options = DriveOptions(data_dir=tmp_path)
    assert expand(f"{DONGLE}|{OLD}", options) == [f"{DONGLE}|{OLD}/0:3"]
    found = find_route(tmp_path, RouteName(None, DONGLE, OLD))
    assert sorted(found[1].files) == sorted(FILES)
    one = tmp_path / f"{DONGLE}_{OLD}--1--fcamera.hevc"
    assert expand(str(one), DriveOptions()) == [str(one)]


def test_split_makes_each_segment_a_drive(tmp_path: Path) -> None:
    _route(tmp_path, f"{NEW}--{{}}")
    options = DriveOptions(data_dir=tmp_path, split=True)
    assert expand(NEW, options) == [f"{NEW}--{number}" for number in range(4)]
    assert expand(str(tmp_path), options) == [f"{tmp_path}/{number}" for number in range(4)]
    assert expand(f"{tmp_path}/1", options) == [f"{tmp_path}/1"]


def test_steps_make_drives_of_what_is_consecutive(tmp_path: Path) -> None:
    _route(tmp_path, f"{NEW}--{{}}")
    options = DriveOptions(data_dir=tmp_path)
    assert expand(f"{NEW}/0:4:2", options) == [f"{NEW}--0", f"{NEW}--2"]
    assert expand(f"{NEW}/::-1", options) == [f"{NEW}--{number}" for number in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (DriveOptions(telemetry=Path("car.csv")), "--telemetry"),
        (DriveOptions(camera=VideoCamera(pitch_deg=2.0)), "--camera"),
        (DriveOptions(rate_hz=20.0), "--rate"),
    ],
)
def test_an_option_of_videos_is_refused_for_a_segment(
    tmp_path: Path, options: DriveOptions, option: str
) -> None:
    segment = _segment(tmp_path / "{odd} drive")
    message = re.escape(f"{option}: expected a video, found {segment}, whose recording has its own")
    with pytest.raises(UsageError, match=message):
        expand_drives([str(segment)], options)
    with pytest.raises(UsageError, match=message):
        open_drive(str(segment), options)


@pytest.mark.parametrize("slash", ["", "/"])
def test_paths_of_segments_and_of_their_directories(tmp_path: Path, slash: str) -> None:
    route = _route(tmp_path / NEW, "{}")
    assert expand(f"{route}{slash}", DriveOptions()) == [f"{route}/0:4"]
    assert expand(f"{route}/2{slash}", DriveOptions()) == [f"{route}/2{slash}"]
    assert expand(f"{route}/1:3{slash}", DriveOptions()) == [f"{route}/1:3"]
    assert expand(f"{route}/2/rlog.zst", DriveOptions()) == [f"{route}/2/rlog.zst"]
    plain = _segment(tmp_path / "my drive")
    assert expand(f"{plain}{slash}", DriveOptions()) == [f"{plain}{slash}"]
    assert expand(f"{plain}/q", DriveOptions()) == [f"{plain}/q"]


@pytest.mark.parametrize("name", ["my drive--0", "drive--12", f"{NEW}--0", "0"])
def test_names_that_end_as_a_selection_does(tmp_path: Path, name: str) -> None:
    plain = _segment(tmp_path / name)
    for text in (str(plain), f"{plain}/", f"{plain}/q", f"{plain}/r", f"{plain}/q/"):
        assert len(expand(text, DriveOptions()) or []) == 1, text
    assert expand(f"{plain}/q", DriveOptions()) == [f"{plain}/q"]


CONNECT = f"connect.comma.ai/{DONGLE}/{NEW}"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"https://{CONNECT}", f"{DONGLE}|{NEW}"),
        (f"http://{CONNECT}/?x=1#y", f"{DONGLE}|{NEW}"),
        # What is shown, in seconds from the start of the route.
        (f"https://{CONNECT}/0/59", f"{DONGLE}|{NEW}/0:1"),
        (f"{CONNECT}/65/180", f"{DONGLE}|{NEW}/1:3"),
        (f"https://{CONNECT}/120/181/q", f"{DONGLE}|{NEW}/2:4/q"),
        (f"https://{CONNECT}/3", f"{DONGLE}|{NEW}/3"),
        (f"https://{CONNECT}/q/", f"{DONGLE}|{NEW}/q"),
        (f"{DONGLE}/{NEW}/65/180", f"{DONGLE}/{NEW}/65/180"),
    ],
)
def test_a_pasted_address_is_a_route_name(text: str, name: str) -> None:
    assert from_address(text) == name


@pytest.mark.parametrize("rest", ["", "/", f"/{DONGLE}", f"/{DONGLE}/1690488081496/1690488851596"])
def test_an_address_of_something_else_is_one_line(rest: str) -> None:
    with pytest.raises(DriveError, match=r"expected the address of a route, .* copy its address"):
        expand(f"https://connect.comma.ai{rest}", DriveOptions())


def test_a_route_is_found_by_its_address(tmp_path: Path) -> None:
    _route(tmp_path, f"{DONGLE}|{NEW}--{{}}")
    options = DriveOptions(data_dir=tmp_path)
    assert expand(f"https://{CONNECT}/60/179", options) == [f"{DONGLE}|{NEW}/1:3"]


def test_segment_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_segment(tmp_path / f"{NEW}--7"))
    assert expand(".", DriveOptions()) == ["."]
    monkeypatch.chdir(tmp_path)
    assert expand(f"{NEW}/7", DriveOptions()) == [f"{NEW}--7"]


def test_directory_of_several_routes_is_several_drives(tmp_path: Path) -> None:
    _route(tmp_path, f"{NEW}--{{}}", range(2))
    _route(tmp_path, f"{OLD}--{{}}", range(3))
    assert expand(str(tmp_path), DriveOptions()) == [
        f"{tmp_path}/{NEW}/0:2",
        f"{tmp_path}/{OLD}/0:3",
    ]
    with pytest.raises(DriveError, match=r"expected one route .* found 2; name one of them"):
        expand(f"{tmp_path}/0:1", DriveOptions())


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("1:6", "segments 2, 3, 5"),
        ("2", "segment 2"),
        ("", "segments 2, 3"),
        ("0:9", "2, 3, 5, 6, 7, 8"),
    ],
)
def test_missing_segments_are_all_named(tmp_path: Path, text: str, missing: str) -> None:
    _route(tmp_path, f"{NEW}--{{}}", [0, 1, 4])
    with pytest.raises(DriveError, match=rf"{NEW}: expected .*{missing}, found 0:2, 4 only"):
        expand(f"{NEW}/{text}", DriveOptions(data_dir=tmp_path))


def test_route_of_which_the_beginning_was_not_fetched(tmp_path: Path) -> None:
    _route(tmp_path, f"{NEW}--{{}}", [3, 4])
    assert expand(NEW, DriveOptions(data_dir=tmp_path)) == [f"{NEW}/3:5"]


def test_errors_name_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DriveError, match=rf"expected segments of {NEW} in .*{NEW}--0, found none"):
        expand(NEW, DriveOptions(data_dir=tmp_path))
    with pytest.raises(DriveError, match=r"name their directory with --data-dir"):
        expand(NEW, DriveOptions())


def test_log_of_two_devices_needs_the_dongle(tmp_path: Path) -> None:
    other = "0123456789abcdef"
    _route(tmp_path, f"{DONGLE}|{OLD}--{{}}")
    _route(tmp_path, f"{other}|{OLD}--{{}}", range(1))
    options = DriveOptions(data_dir=tmp_path)
    with pytest.raises(DriveError, match=rf"found {other}, {DONGLE}; write the dongle"):
        expand(OLD, options)
    assert expand(f"{other}|{OLD}", options) == [f"{other}|{OLD}--0"]


def test_what_is_no_drive_of_this_kind_is_left_to_others(tmp_path: Path) -> None:
    video = tmp_path / "drive.mp4"
    video.write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    # A segment of another kind, under the same name as ours.
    foreign = _segment(tmp_path / f"{DONGLE}|{OLD}" / "3", ("video.hevc", "raw_log.bz2"))
    for text in (str(video), str(tmp_path / "empty"), str(foreign), "no such path", "", "a\0b"):
        assert expand(text, DriveOptions()) is None
    assert expand(f"{DONGLE}|{OLD}/3", DriveOptions(data_dir=tmp_path)) is None


def test_directory_that_cannot_be_read_is_one_line() -> None:
    with pytest.raises(DriveError, match="expected a readable directory, found File name too long"):
        expand(NEW, DriveOptions(data_dir=Path("x" * 300)))
    assert expand("x" * 5000, DriveOptions()) is None
