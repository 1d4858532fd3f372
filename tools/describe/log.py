"""Describes an event log, or dumps it, for `modeld inspect LOG` and its ``--dump``.

A dump contains chosen services and fields as JSON lines, CSV or npz. The log is read and written in
pieces, so memory does not grow with its size. CSV and npz need to know their columns in advance, so
they read the log twice.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from cereal.errors import LogError, MessageError
from cereal.schema import log
from cereal.services import member_of
from runtime.files.user_file import whole_file
from runtime.texts import count_text
from tools.describe.dump_columns import Columns, column_name, write_npz
from tools.errors import UsageError
from tools.lib.json_output import json_text
from tools.lib.options import nearest
from tools.lib.terminal import Section
from tools.messages.drive_log import NS_PER_S, DriveTime, read_log_events
from tools.messages.message_values import (
    DataAs,
    Selection,
    Value,
    flatten_message,
    has_field,
    message_to_plain,
)

logger = logging.getLogger(__name__)

# Columns of every row besides its fields.
STAMPS = ("service", "logMonoTime", "valid")


def describe(path: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return counts and rates per service; messages newer than the schema are only counted.

    Spans are in the drive's time, see `tools.messages.drive_log`.

    Raises:
        LogError: the log cannot be read.
    """
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    unknown = 0
    time = DriveTime()
    for service, time_ns, _ in time.follow(read_log_events(path)):
        if service is None:
            unknown += 1
            continue
        counts[service] += 1
        first[service] = min(time_ns, first.get(service, time_ns))
        last[service] = max(time_ns, last.get(service, time_ns))
    services = [_facts(name, counts[name], last[name] - first[name]) for name in sorted(counts)]
    facts = {
        "messages": counts.total(),
        "unknown": unknown,
        **time.as_json(),
        "services": services,
    }
    rows: list[tuple[object, ...]] = [tuple(service.values()) for service in services]
    title = f"{count_text(counts.total(), 'message')} over {time.text()}"
    if unknown:
        title += f", and {count_text(unknown, 'message')} newer than the schema"
    return facts, [Section(title, ("service", "count", "span s", "Hz"), rows)]


def _facts(name: str, count: int, span_ns: int) -> dict[str, Any]:
    """Return the facts of a service; the rate is that of the n - 1 gaps between n messages."""
    rate = (count - 1) * 1e9 / span_ns if span_ns > 0 else None
    return {"service": name, "count": count, "span_s": span_ns / 1e9, "rate_hz": rate}


@dataclass(frozen=True, slots=True)
class Request:
    """The request for a dump."""

    path: Path  # the log
    services: tuple[str, ...] = ()  # names of services; all if empty
    fields: tuple[str, ...] = ()  # paths of fields; all if empty
    from_s: float | None = None  # start, in s of the drive's time, see `tools.messages.drive_log`
    to_s: float | None = None  # end, exclusive
    data_as: DataAs = "length"  # how binary data is written


@dataclass(slots=True)
class Tally:
    """The numbers of written rows and of selected messages with corrupt content."""

    rows: int = 0
    damaged: int = 0


class Row:
    """One selected message."""

    def __init__(self, service: str, event: Any, selection: Selection | None) -> None:
        self.service = service
        self.mono_time_ns: int = event.logMonoTime
        self.is_valid: bool = event.valid
        self.event = event
        self._selection = selection

    def columns(self, data_as: DataAs) -> dict[str, Value]:
        """Return the selected values by column name, prefixed with the service's name.

        Raises:
            MessageError: the content is corrupt.
        """
        return {
            column_name(self.service, path): _data_as(value, data_as)
            for path, value in flatten_message(self.event, self._selection).items()
        }

    def json(self, data_as: DataAs) -> str:
        """Return the row as a line of JSON.

        Raises:
            MessageError: the content is corrupt.
        """
        return json_line(self.service, self.event, self._selection, data_as)


def json_line(
    service: str, event: Any, selection: Selection | None, data_as: DataAs = "length"
) -> str:
    """Return a message as one line of strict JSON.

    Without a selection it is nested under ``message``; with one, ``fields`` has its values by path.

    Raises:
        MessageError: the content is corrupt.
    """
    line: dict[str, Any] = {
        "service": service,
        "logMonoTime": event.logMonoTime,
        "valid": event.valid,
    }
    if selection is None:
        line["message"] = message_to_plain(event, data_as)
    else:
        values = flatten_message(event, selection)
        line["fields"] = {path: _for_json(value, data_as) for path, value in values.items()}
    return json_text(line)


def selections(
    services: Sequence[str], fields: Sequence[str]
) -> tuple[dict[str, Selection | None], tuple[str, ...]]:
    """Return the wanted fields of each service, and the services to read.

    A frame id of the message itself is always included.

    Raises:
        UsageError: no such service, or a field that none of the services has.
    """
    names = tuple(dict.fromkeys(member_of(name) for name in services))
    for name in names:
        if name not in log.Event.schema.union_fields:
            near = nearest(name, log.Event.schema.union_fields)
            raise UsageError(f"--service: unknown service {name!r}{near}; see cereal/log.capnp")
    if not fields:
        return {}, names
    if not names:
        raise UsageError("--field: expected --service with it, found none; name the services")
    chosen: dict[str, Selection | None] = {}
    for name in names:
        own = [path for path in fields if has_field(name, path)]
        if has_field(name, "frameId"):
            own.append("frameId")
        chosen[name] = Selection(own)
    for path in fields:
        if not any(has_field(name, path) for name in names):
            raise UsageError(
                f"--field {path}: expected a field of {', '.join(names)}, found none of that name; "
                "fields are those of cereal/log.capnp, as in position.x or laneLines[1].y"
            )
    return chosen, names


def dump(request: Request, output: Path | None, kind: str) -> Tally:
    """Write the requested dump.

    `output` is written to a temporary file and renamed when complete; None is stdout. `kind` is
    ``jsonl``, ``csv`` or ``npz``, which needs a file.

    Raises:
        LogError: the log cannot be read, or has no messages.
        UsageError: a service or field does not exist, npz has no file, there are too many columns,
            or nothing in the log matches.
    """
    tally = Tally()
    if kind == "npz":
        if output is None:
            raise UsageError("--format npz: expected --output, found none; name a file")
        columns = _survey(request)
        with whole_file(output) as file:
            write_npz(file, columns, _tabular(request, tally), output.parent)
    else:
        with _text_output(output) as stream:
            if kind == "csv":
                _write_csv(stream, request, tally)
            else:
                for line in _each(request, tally, lambda row: row.json(request.data_as)):
                    stream.write(line + "\n")
                    tally.rows += 1
                _check_not_empty(request, tally.rows)
    if tally.damaged:
        logger.warning(
            "%s: left out %s whose content is damaged",
            request.path,
            count_text(tally.damaged, "message"),
        )
    return tally


def _check_not_empty(request: Request, rows: int) -> None:
    """Raise an error if nothing was selected."""
    if rows:
        return
    if not request.services and request.from_s is None and request.to_s is None:
        raise LogError(f"{request.path}: expected a log with messages, found none that can be read")
    what = f"messages of {', '.join(request.services)}" if request.services else "messages"
    if request.from_s is not None:
        what += f" from {request.from_s:g} s on"
    if request.to_s is not None:
        what += f" before {request.to_s:g} s"
    raise UsageError(
        f"--dump: expected {what} in {request.path}, found none that can be "
        "read; modeld inspect lists what it has"
    )


def _chosen(request: Request) -> Iterator[Row]:
    wanted, names = selections(request.services, request.fields)
    first_ns = (request.from_s or 0.0) * NS_PER_S
    end_ns = math.inf if request.to_s is None else request.to_s * NS_PER_S
    for service, time_ns, event in DriveTime().follow(read_log_events(request.path)):
        if not first_ns <= max(0, time_ns) < end_ns:
            continue
        if service is not None and (not names or service in names):
            yield Row(service, event, wanted.get(service))


def _each(request: Request, tally: Tally, take: Callable[[Row], Any]) -> Iterator[Any]:
    """Yield `take(row)` for each row; messages with corrupt content are counted."""
    for row in _chosen(request):
        try:
            taken = take(row)
        except MessageError as error:
            logger.info("%s: %s", request.path, error)
            tally.damaged += 1
        else:
            yield taken


def _survey(request: Request) -> Columns:
    """Return the columns of a log: all names, and the greatest lengths of lists and texts."""
    columns = Columns()
    for service, values in _each(
        request, Tally(), lambda row: (row.service, row.columns(request.data_as))
    ):
        columns.add(service, values)
    _check_not_empty(request, sum(columns.rows.values()))
    return columns


def _tabular(request: Request, tally: Tally) -> Iterator[tuple[str, int, bool, dict[str, Value]]]:
    for row, values in _each(request, tally, lambda row: (row, row.columns(request.data_as))):
        tally.rows += 1
        yield row.service, row.mono_time_ns, row.is_valid, values


def _write_csv(stream: TextIO, request: Request, tally: Tally) -> None:
    columns = _survey(request)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*STAMPS, *columns.cells()])
    for service, mono_time_ns, is_valid, values in _tabular(request, tally):
        cells: list[object] = [service, mono_time_ns, int(is_valid)]
        for name, column in columns.items():
            value = values.get(name)
            if column.is_list:
                items = [] if value is None else _plain_list(value)
                cells += [*items, *[""] * (column.length - len(items))]
            else:
                cells.append("" if value is None else _plain_cell(value))
        writer.writerow(cells)


def _plain_list(value: Value) -> list[Any]:
    items = value.tolist() if isinstance(value, np.ndarray) else cast("list[Any]", value)
    return [_plain_cell(item) for item in items]


def _plain_cell(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _data_as(value: Value, data_as: DataAs) -> Value:
    """Return binary data as a number of bytes or as base64 text."""
    if isinstance(value, bytes):
        return len(value) if data_as == "length" else base64.b64encode(value).decode("ascii")
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        if data_as == "length":
            return np.array([len(blob) for blob in value], np.int64)
        return [base64.b64encode(blob).decode("ascii") for blob in value]
    return value


def _for_json(value: Value, data_as: DataAs) -> Any:
    if isinstance(value, bytes) and data_as == "length":
        return {"bytes": len(value)}
    value = _data_as(value, data_as)
    return value.tolist() if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def _text_output(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    with whole_file(output) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield text
        text.detach()  # flushes, but leaves closing the file to the outer block
