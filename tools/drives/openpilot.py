"""Opens drives of openpilot and sunnypilot: routes and segments, by name or by path.

A route is one trip, recorded in segments of a minute. Consecutive segments form one continuous
drive. `tools.drives.routes` parses names and finds routes on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.drives.drive import Drive
from tools.drives.open_drive import DriveOptions
from tools.drives.routes import (
    SMALL_VIDEO,
    VIDEO_NAMES,
    RouteName,
    SegmentFiles,
    Selection,
    find_route,
    from_address,
    has_small_only,
    holds_route,
    missing_numbers,
    parse_route,
    readings,
    segment_at,
    segments_in,
)
from tools.errors import DriveError
from tools.lib.named_file import tree


@dataclass(frozen=True, slots=True)
class _Found:
    """A route and its selected segments."""

    base: str  # the text that leads to the route
    route: str  # its name, ``dongle|log id``, as far as it is known
    segments: Sequence[SegmentFiles]  # the selected segments, in order
    selection: Selection  # the selection as written
    is_segment: bool = False  # whether `base` leads to a segment instead of a route


def expand(text: str, options: DriveOptions) -> list[str] | None:
    """Return the drives that a text denotes; None if it is no route, segment or their directory.

    Consecutive segments form one drive, unless `options.split` is set.

    Raises:
        DriveError: a named route or segment does not exist or is incomplete.
    """
    found = _find(text, options)
    if found is None:
        return None
    return [_name_again(one, run) for one in found for run in _runs(one.segments, options.split)]


def open_drive(text: str, options: DriveOptions) -> Drive:
    """Open one of the drives that `expand` returned.

    Raises:
        DriveError: see `tools.drives.segment_drive.SegmentDrive`.
        MissingPackageError: see `tools.drives.segment_drive.SegmentDrive`.
    """
    # Imported here so that expanding names does not load the decoders.
    from tools.drives.segment_drive import SegmentDrive, Source

    found = _find(text, options) or []
    if len(found) != 1 or len(found[0].segments) == 0:
        raise DriveError(f"{text}: expected one openpilot drive, found {len(found)}; name one")
    one = found[0]
    is_small = has_small_only(one.segments)
    wanted = {"road": options.road_cameras, "wideRoad": options.road_cameras}
    wanted["driver"] = options.driver_camera
    videos = {name: VIDEO_NAMES[name] for name, is_wanted in wanted.items() if is_wanted}
    if is_small and options.road_cameras:
        videos = {"road": SMALL_VIDEO}
    source = Source(_display_name(one), one.segments, _logs(one), videos, options.focal_px)
    return SegmentDrive(source)


def drive_logs(text: str, options: DriveOptions) -> list[Path]:
    """Return the logs of one of the drives that `expand` returned; empty for other kinds.

    The logs are in order. Nothing is opened, since opening a drive reads all logs and videos.

    Raises:
        DriveError: a segment has no log.
    """
    return [log for one in _find(text, options) or [] for log in _logs(one)]


def _logs(found: _Found) -> list[Path]:
    is_small = has_small_only(found.segments)
    return [segment.log(found.selection.selector, is_small=is_small) for segment in found.segments]


def segment_directories(text: str, options: DriveOptions) -> list[Path]:
    """Return the directories of the segments that a text denotes; empty for other kinds."""
    try:
        found = _find(text, options) or []
    except DriveError:
        return []
    return [segment.path for one in found for segment in one.segments if segment.path.is_dir()]


def input_files(text: str, options: DriveOptions) -> list[Path]:
    """Return the files and directories of the segments, and the directory that the text names.

    Segments that a selection omits are included.
    """
    bases = [base for base, _ in readings(from_address(text))]
    base = next((one for one in bases if one and _exists(Path(one))), bases[-1])
    found, segments = [Path(base)] if base and _exists(Path(base)) else [], []
    with suppress(DriveError):
        one, name = segment_at(Path(base)), parse_route(base)
        if one is not None:
            segments = [one]
        elif found and found[0].is_dir():
            segments = [one for route in segments_in(found[0]).values() for one in route]
        elif not found and name is not None:
            segments = find_route(_root(name, options), name)
    for segment in segments:
        found += [*tree(segment.path), *segment.files.values()]
    return found


def _find(text: str, options: DriveOptions) -> list[_Found] | None:
    base, selection = text, Selection()
    for base, selection in readings(from_address(text)):
        if base and _exists(Path(base)):
            return _at_path(base, Path(base), selection)
    name = parse_route(base)
    return None if name is None else _by_name(base, name, selection, options)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _at_path(base: str, path: Path, selection: Selection) -> list[_Found] | None:
    segment = segment_at(path)
    if segment is not None:
        if selection.text is not None:
            raise DriveError(
                f"{base}: expected a route to choose segments {selection.text} of, found one "
                "segment; leave the numbers out"
            )
        return [_Found(base, segment.route, [segment], selection, is_segment=True)]
    if not path.is_dir():
        return None
    routes = segments_in(path)
    if not routes:
        return None
    if len(routes) > 1 and selection.text is not None:
        raise DriveError(
            f"{base}: expected one route to choose segments {selection.text} of, found "
            f"{len(routes)}; name one of them, such as {path / min(routes)}"
        )
    return [
        _choose(
            base if len(routes) == 1 or not route else str(path / route), route, found, selection
        )
        for route, found in routes.items()
    ]


def _by_name(
    base: str, name: RouteName, selection: Selection, options: DriveOptions
) -> list[_Found] | None:
    root = _root(name, options)
    segments = find_route(root, name)
    if not segments:
        if holds_route(root, name):
            # The drive is of another kind, which is tried next.
            return None
        hint = "" if options.data_dir or name.root else "; name their directory with --data-dir"
        raise DriveError(
            f"{base}: expected segments of {name.text} in {root}, such as "
            f"{root / f'{name.text}--0'}, found none{hint or '; check the name'}"
        )
    return [_choose(base, segments[0].route or name.text, segments, selection)]


def _root(name: RouteName, options: DriveOptions) -> Path:
    """Return the directory that contains a route named without a path."""
    return Path(name.root) if name.root is not None else options.data_dir or Path()


def _choose(
    base: str, route: str, segments: Sequence[SegmentFiles], selection: Selection
) -> _Found:
    """Return the route with the selected ones of its segments."""
    there = {segment.number or 0: segment for segment in segments}
    numbers = _numbers(base, selection, there)
    missing = missing_numbers(segments, numbers)
    if missing:
        runs = ", ".join(_range_text(run) for run in _consecutive(sorted(there)))
        what = "segment" if len(missing) == 1 else "segments"
        raise DriveError(
            f"{base}: expected {what} {', '.join(map(str, missing))}, found {runs} only; fetch "
            "what is missing, or name a range that is there"
        )
    return _Found(base, route, [there[number] for number in numbers], selection)


def _numbers(base: str, selection: Selection, there: dict[int, SegmentFiles]) -> list[int]:
    try:
        numbers = selection.numbers(max(there) + 1)
    except DriveError as error:
        raise DriveError(f"{base}: {error}") from None
    # A route without its first segments starts with the first one present.
    return numbers if selection.text is not None else [n for n in numbers if n >= min(there)]


def _runs(segments: Sequence[SegmentFiles], split: bool) -> Iterator[list[SegmentFiles]]:
    """Yield the runs of segments with consecutive numbers; each is one drive."""
    run: list[SegmentFiles] = []
    for segment in segments:
        follows = bool(run) and run[-1].number is not None and segment.number == run[-1].number + 1
        if run and (split or not follows):
            yield run
            run = []
        run.append(segment)
    yield run


def _consecutive(numbers: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    yield run


def _range_text(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}:{numbers[-1] + 1}"


def _name_again(found: _Found, run: Sequence[SegmentFiles]) -> str:
    """Return a text that denotes exactly these segments."""
    if found.is_segment:
        return found.base + found.selection.suffix
    base = found.base.rstrip("/")
    numbers = [segment.number or 0 for segment in run]
    mark = "--" if len(numbers) == 1 and parse_route(base) else "/"
    return f"{base}{mark}{_range_text(numbers)}{found.selection.suffix}"


def _display_name(found: _Found) -> str:
    numbers = [segment.number for segment in found.segments]
    if not found.route or None in numbers:
        return Path(found.base).absolute().name if found.is_segment else found.base
    known = [number for number in numbers if number is not None]
    if len(known) == 1:
        return f"{found.route}--{known[0]}"
    return f"{found.route}/{_range_text(known)}"
