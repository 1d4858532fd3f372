"""Parses names of openpilot's routes and segments, and finds their files on disk.

A route is one trip of a device (the dongle), recorded in segments of a minute. A name has one of
these forms; parsing it does not touch the disk::

    [root/][dongle | _ or /]log id[--N or /N or /a:b[:c]][/selector]
    https://connect.comma.ai/dongle/log id[/from s/to s][/selector]

A log id has 20 characters: ``2023-07-27--13-01-19`` until 2024, ``000001d4--2648a9a404`` since.
Files are stored in one of these layouts::

    <root>/<dongle>|<log id>--N/rlog.zst      <root>/<dongle>/<log id>/N/rlog.zst
    <root>/<log id>--N/rlog.zst               <root>/<dongle>|<log id>/N/rlog.zst
    <root>/<dongle>/<log id>--N/rlog.zst      <root>/<log id>/N/rlog.zst
    <root>/<dongle>_<log id>--N--rlog.zst     any of these with _ in place of |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tools.errors import DriveError

DONGLE: Final = r"[0-9a-z]{16}"
LOG_ID: Final = r"[0-9]{4}(?:-[0-9]{2}){2}-(?:-[0-9]{2}){3}|[0-9a-f]{8}--[0-9a-z]{10}"
# A week of driving. No route is longer, and a list of that many numbers is small.
MAX_SEGMENTS: Final = 10_000
_TAIL: Final = re.compile(
    r"(?P<base>.*?)"
    r"(?:(?:--|/)(?P<selection>-?[0-9]+|-?[0-9]*:-?[0-9]*(?::-?[0-9]*)?))?"
    r"(?:/(?P<selector>[rqai]))?/*"
)
_ROUTE: Final = re.compile(
    rf"(?:(?P<root>.*?)/)??(?:(?P<dongle>{DONGLE})[|_/])?(?P<log_id>{LOG_ID})"
)
_SELECTOR: Final = re.compile(r"(?P<base>.+?)/+(?P<selector>[rqai])/*")
_ADDRESS: Final = re.compile(r"(?:https?://)?connect\.comma\.ai(?:/(?P<path>[^?#]*))?(?:[?#].*)?")
_ROUTE_OF_ADDRESS: Final = re.compile(
    rf"(?P<dongle>{DONGLE})/(?P<log_id>{LOG_ID})(?:/(?P<begin>\d+)/(?P<end>\d+))?(?P<rest>(?:/.+)?)"
)
_SEGMENT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of a route's segments, and of the full or the small log."""

    # ``5``, ``-1``, ``2:6`` or ``0:10:2``, as in Python; None: all segments.
    text: str | None = None
    # ``r`` the full log, ``q`` the small one, ``a`` and ``i`` the full one if it exists, else the
    # small one.
    selector: str = "r"

    @property
    def suffix(self) -> str:
        """The suffix of a route's name that selects the log."""
        return "" if self.selector == "r" else f"/{self.selector}"

    def numbers(self, count: int) -> list[int]:
        """Return the selected segments of a route with segments 0 to ``count - 1``.

        An explicit end can exceed the route. The result then contains these numbers, so that the
        caller can report them as missing.

        Raises:
            DriveError: nothing is selected; the caller adds the route's name.
        """
        if self.text is None:
            return list(range(count))
        parts = [int(part) if part else None for part in self.text.split(":")]
        if any(part is not None and abs(part) > MAX_SEGMENTS for part in parts):
            raise DriveError(f"expected segments up to {MAX_SEGMENTS}, found {self.text}")
        from_end = [part + count if part is not None and part < 0 else part for part in parts]
        start, stop = (*from_end[:2], None)[:2]
        if len(parts) == 1:
            numbers = [start or 0]
        else:
            step = parts[2] if len(parts) == 3 and parts[2] is not None else 1
            if step == 0:
                raise DriveError(f"expected a step other than 0, found {self.text}")
            first, end = (0, count) if step > 0 else (count - 1, -1)
            numbers = list(
                range(first if start is None else start, end if stop is None else stop, step)
            )
        if not numbers or min(numbers) < 0:
            raise DriveError(
                f"expected segments of 0 to {count - 1}, found {self.text}, which selects none; "
                "correct the range"
            )
        return numbers


@dataclass(frozen=True, slots=True)
class RouteName:
    """A route by name."""

    root: str | None  # directory written before the name; None if there is none
    dongle: str | None  # the device's 16 characters; None if the name has none
    log_id: str  # 20 characters

    @property
    def text(self) -> str:
        """The canonical name, without the root."""
        return f"{self.dongle}|{self.log_id}" if self.dongle else self.log_id


def from_address(text: str) -> str:
    """Return the route name in the address of a web page; other texts are returned unchanged.

    Raises:
        DriveError: the address is not that of a route.
    """
    address = _ADDRESS.fullmatch(text)
    if address is None:
        return text
    match = _ROUTE_OF_ADDRESS.fullmatch((address["path"] or "").strip("/"))
    if match is None:
        raise DriveError(
            f"{text}: expected the address of a route, such as https://connect.comma.ai/"
            "a2a0ccea32023010/000001d4--2648a9a404, found another one; open the route and copy "
            "its address"
        )
    name = f"{match['dongle']}|{match['log_id']}"
    if match["begin"] is not None:
        first = int(match["begin"]) // _SEGMENT_S
        name += f"/{first}:{max(first + 1, -(-int(match['end']) // _SEGMENT_S))}"
    return name + match["rest"]


def readings(text: str) -> list[tuple[str, Selection]]:
    """Return the possible readings of a text as a name and a selection, the longest name first.

    They are needed because a directory's own name can end like a selection, in ``--0``.
    """
    found = [(text, Selection())]
    match = _SELECTOR.fullmatch(text)
    if match is not None:
        found.append((match["base"], Selection(selector=match["selector"])))
    return [*found, split_selection(text)]


def split_selection(text: str) -> tuple[str, Selection]:
    """Split a text into a name and the selection of segments and log at its end.

    ``X/2:5/q`` is ``X`` and segments ``2:5`` of the small logs; trailing slashes are ignored.
    """
    # A log id ends in "--" and ten characters. If all are digits, they are still not a segment.
    whole = _ROUTE.fullmatch(text.rstrip("/"))
    if whole is not None:
        return text.rstrip("/"), Selection()
    match = _TAIL.fullmatch(text)
    if match is None:
        return text, Selection()
    selection, base = match["selection"], match["base"]
    if selection is not None and _ROUTE.fullmatch(f"{base}--{selection}"):
        base, selection = f"{base}--{selection}", None
    return base, Selection(selection, match["selector"] or "r")


def parse_route(text: str) -> RouteName | None:
    """Return the route that a text without segments names; None if it names none."""
    match = _ROUTE.fullmatch(text)
    if match is None:
        return None
    root = match["root"]
    return RouteName("/" if root == "" else root, match["dongle"], match["log_id"])


# --- Files on disk ----------------------------------------------------------------------------

RLOG_NAMES: Final = ("rlog.zst", "rlog.bz2", "rlog")
QLOG_NAMES: Final = ("qlog.zst", "qlog.bz2", "qlog")
VIDEO_NAMES: Final[Mapping[str, str]] = {
    "road": "fcamera.hevc",
    "wideRoad": "ecamera.hevc",
    "driver": "dcamera.hevc",
}
SMALL_VIDEO: Final = "qcamera.ts"
FILE_NAMES: Final = (*RLOG_NAMES, *QLOG_NAMES, *VIDEO_NAMES.values(), SMALL_VIDEO)

_SEGMENT: Final = re.compile(
    rf"(?:(?P<dongle>{DONGLE})[|_])?(?P<log_id>{LOG_ID})--(?P<number>[0-9]{{1,4}})"
    rf"(?:--(?P<file>{'|'.join(map(re.escape, FILE_NAMES))}))?"
)
_DIRECTORY: Final = re.compile(rf"(?:(?P<dongle>{DONGLE})[|_])?(?P<log_id>{LOG_ID})")
_NUMBER: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of one segment."""

    path: Path  # its directory, or the common prefix of its files if it has none
    number: int | None  # number in the route; None if the path does not contain it
    route: str  # ``dongle|log id`` as far as the path contains it; else empty
    files: Mapping[str, Path] = field(default_factory=dict)  # by ``FILE_NAMES``

    def log(self, selector: str, *, is_small: bool = False) -> Path:
        """Return the log for a selector.

        `selector`: see `Selection`. `is_small`: whether the drive has only small pictures, in which
        case any log is accepted.

        Raises:
            DriveError: the segment has no such log; the message lists the files it has.
        """
        wanted = {"r": RLOG_NAMES, "q": QLOG_NAMES}.get(selector, RLOG_NAMES + QLOG_NAMES)
        if selector == "r" and is_small:
            wanted = RLOG_NAMES + QLOG_NAMES
        for name in wanted:
            if name in self.files:
                return self.files[name]
        hint = ""
        if any(name in self.files for name in QLOG_NAMES):
            hint = "; for the small log, which lacks most messages, add /q"
        elif SMALL_VIDEO in self.files:
            hint = f"; without a log its pictures are a video: {self.files[SMALL_VIDEO]}"
        raise DriveError(
            f"{self.path}: expected a log, one of {', '.join(wanted)}, found "
            f"{', '.join(sorted(self.files)) or 'none of the files of a segment'}{hint}"
        )


def has_small_only(segments: Sequence[SegmentFiles]) -> bool:
    """Return whether the segments have small pictures and no full video of road or wide camera."""
    there = {name for segment in segments for name in segment.files}
    return SMALL_VIDEO in there and not {VIDEO_NAMES["road"], VIDEO_NAMES["wideRoad"]} & there


def segment_at(path: Path) -> SegmentFiles | None:
    """Return the segment of the directory or file at `path`, or None.

    For a file of small pictures, the segment's full videos are ignored. Such a file without a log
    is no segment.
    """
    try:
        if path.is_dir():
            return _directory(path)
        if path.is_file():
            segment = _segment_of_file(path)
            return _small_part(segment) if segment and path.name.endswith(SMALL_VIDEO) else segment
    except OSError as error:
        raise _unreadable(path, error) from error
    return None


def _small_part(segment: SegmentFiles) -> SegmentFiles | None:
    full = VIDEO_NAMES.values()
    files = {name: path for name, path in segment.files.items() if name not in full}
    return replace(segment, files=files) if set(files) - {SMALL_VIDEO} else None


def segments_in(directory: Path) -> dict[str, list[SegmentFiles]]:
    """Return the segments below a directory by route, in order; ``""`` is the unnamed route.

    Raises:
        DriveError: the directory cannot be read.
    """
    try:
        found = list(_below(directory))
    except OSError as error:
        raise _unreadable(directory, error) from error
    routes: dict[str, dict[int, SegmentFiles]] = {}
    for segment in found:
        if segment.number is not None:
            # If a segment exists twice, the layout that was searched first is used.
            routes.setdefault(segment.route, {}).setdefault(segment.number, segment)
    return {
        route: [segments[number] for number in sorted(segments)]
        for route, segments in sorted(routes.items())
    }


def find_route(root: Path, name: RouteName) -> list[SegmentFiles]:
    """Return the segments of a route below `root`, in order; empty if there are none.

    Raises:
        DriveError: the name has no dongle and several devices have that log id, or `root` cannot be
            read.
    """
    found: dict[str, dict[int, SegmentFiles]] = {}
    for place in _places(root, name):
        for route, segments in segments_in(place).items():
            dongle, _, log_id = route.rpartition("|")
            if log_id != name.log_id or (name.dongle and dongle not in ("", name.dongle)):
                continue
            numbered = found.setdefault(dongle or name.dongle or "", {})
            for segment in segments:
                numbered.setdefault(segment.number or 0, segment)
    if len(found) > 1:
        dongles = ", ".join(dongle or "(none)" for dongle in sorted(found))
        raise DriveError(
            f"{root}: expected one device with the route {name.text}, found {dongles}; write the "
            "dongle before the log id"
        )
    return [numbered[n] for numbered in found.values() for n in sorted(numbered)]


def missing_numbers(segments: Sequence[SegmentFiles], wanted: Sequence[int]) -> list[int]:
    """Return the wanted numbers that no segment has."""
    there = {segment.number for segment in segments}
    return [number for number in wanted if number not in there]


def holds_route(root: Path, name: RouteName) -> bool:
    """Return whether `root` contains a directory of that name, whatever its contents."""
    return any(_DIRECTORY.fullmatch(place.name) for place in _places(root, name))


def _places(root: Path, name: RouteName) -> list[Path]:
    """Return the existing directories that can contain segments of a route."""
    try:
        parents = [root]
        if name.dongle is not None:
            parents.append(root / name.dongle)
        elif root.is_dir():
            parents += [one for one in sorted(root.iterdir()) if re.fullmatch(DONGLE, one.name)]
        places: list[Path] = []
        for parent in parents:
            children = sorted(parent.iterdir()) if parent.is_dir() else []
            places += [parent, *(child for child in children if _is_route(child, name))]
        return [place for place in places if place.is_dir()]
    except OSError as error:
        raise _unreadable(root, error) from error


def _is_route(path: Path, name: RouteName) -> bool:
    match = _DIRECTORY.fullmatch(path.name)
    if match is None or match["log_id"] != name.log_id:
        return False
    return not (name.dongle and match["dongle"] and match["dongle"] != name.dongle)


def _below(directory: Path) -> Iterator[SegmentFiles]:
    """Yield segments that are directories first, then those whose files have a common prefix."""
    flat: dict[str, dict[str, Path]] = {}
    for entry in sorted(directory.iterdir()):
        match = _SEGMENT.fullmatch(entry.name)
        if match is not None and match["file"]:
            if entry.is_file():
                prefix = entry.name.removesuffix(f"--{match['file']}")
                flat.setdefault(prefix, {})[match["file"]] = entry
        elif (match or _NUMBER.fullmatch(entry.name)) and entry.is_dir():
            segment = _directory(entry)
            if segment is not None:
                yield segment
    for prefix, files in flat.items():
        match = _SEGMENT.fullmatch(prefix)
        if match is not None:
            name = _route_named(match, directory)
            yield SegmentFiles(directory / prefix, int(match["number"]), name, files)


def _directory(path: Path) -> SegmentFiles | None:
    files = {name: path / name for name in FILE_NAMES if (path / name).is_file()}
    if not files:
        return None
    # Resolve ".", ".." and links, so that the directory's real name is parsed.
    absolute = path.absolute() if path.name not in ("", "..") else path.resolve()
    match = _SEGMENT.fullmatch(absolute.name)
    if match is not None and not match["file"]:
        name = _route_named(match, absolute.parent)
        return SegmentFiles(path, int(match["number"]), name, files)
    if _NUMBER.fullmatch(absolute.name):
        return SegmentFiles(path, int(absolute.name), _route_of(absolute.parent), files)
    return SegmentFiles(path, None, "", files)


def _segment_of_file(path: Path) -> SegmentFiles | None:
    if path.name in FILE_NAMES:
        return _directory(path.parent)
    match = _SEGMENT.fullmatch(path.name)
    if match is None or not match["file"]:
        return None
    prefix = path.name.removesuffix(f"--{match['file']}")
    for segment in _below(path.parent):
        if segment.path == path.parent / prefix:
            return segment
    return None


def _route_of(directory: Path) -> str:
    """Return the route that a directory of numbered segments belongs to, by its name."""
    absolute = directory.absolute()
    match = _DIRECTORY.fullmatch(absolute.name)
    return "" if match is None else _route_named(match, absolute.parent)


def _route_named(match: re.Match[str], parent: Path) -> str:
    """Return the name of a route; the dongle can be the name of the parent directory."""
    name = parent.absolute().name
    dongle = match["dongle"] or (name if re.fullmatch(DONGLE, name) else None)
    return RouteName(None, dongle, match["log_id"]).text


def _unreadable(path: Path, error: OSError) -> DriveError:
    return DriveError(
        f"{path}: expected a readable directory, found {error.strerror or error}; check the path"
    )
