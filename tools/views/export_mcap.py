"""Exports a log as MCAP: one channel per service, and ready-made views of the model's answer.

The log is streamed, so memory holds one message and one chunk. `publish_time` is the Event's
`logMonoTime`. Viewers order by `log_time`, which equals it with two exceptions. initData carries
the start time of the route and keeps its position in the log. After a reboot of the recording
machine, time continues (`tools.messages.drive_log`).

Messages are JSON in compressed chunks, with schemas and an index. Viewers allow one type per field,
objects with properties, and neither references nor nulls. Non-finite numbers, and lists that
contain one, are therefore moved to a separate key of their object. Viewers reject schemas with void
fields or lists of lists, so these are omitted. No other module imports `mcap` (extra ``replay``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cereal.errors import LogError, MessageError
from cereal.schema import DAMAGED, log
from cereal.services import service_of_member
from modeld.vehicle.cameras import Camera
from runtime.files.user_file import whole_file
from runtime.texts import count_text
from tools.drives.drive import Drive
from tools.errors import DriveError, UsageError
from tools.lib.json_output import finite_json_text, json_text
from tools.messages.drive_log import NS_PER_S, DriveTime, read_log_events
from tools.messages.message_values import Type, fields_of, message_to_plain
from tools.playback.pictures import main_camera
from tools.report.picture import encode_jpeg, jpeg_size
from tools.views import foxglove
from tools.views.answer import Answer, AnswerReader
from tools.views.pass_over import FrameFollower, followed, planes

logger = logging.getLogger(__name__)

SCENE_TOPIC = "/view/model"
TRANSFORM_TOPIC = "/tf"
PICTURE_TOPIC = "/view/camera"
CALIBRATION_TOPIC = "/view/camera_calibration"
VIEW_SCHEMAS = {
    SCENE_TOPIC: "foxglove.SceneUpdate",
    TRANSFORM_TOPIC: "foxglove.FrameTransform",
    PICTURE_TOPIC: "foxglove.CompressedImage",
    CALIBRATION_TOPIC: "foxglove.CameraCalibration",
}

# Extra key in each message; Cap'n Proto names never begin with an underscore.
VALID_KEY = "__valid"
# Key of an object's values that are not finite, or lists that contain such numbers, by name. The
# numbers are written as "nan", "inf" and "-inf", since JSON has no form for them.
NOT_FINITE_KEY = "__notFinite"
# Key of a message that is not a structure, since viewers require objects.
VALUE_KEY = "value"

_INTEGERS = ("i", "u")


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    topics: dict[str, int] = field(default_factory=dict)  # number of messages by channel
    damaged: int = 0  # messages omitted because their content is damaged
    newer: int = 0  # events omitted because their message is newer than our schema


@dataclass(frozen=True, slots=True)
class McapOptions:
    """The contents of the file."""

    members: Sequence[str] = ()  # Event members; empty: all
    with_views: bool = True  # whether to add the channels of `VIEW_SCHEMAS`
    drive: Drive | None = None  # drive whose pictures are added; None: no pictures
    picture_rate_hz: float = 5.0  # most pictures per second of the drive
    on_event: Callable[[], None] = lambda: None  # called after each event


def export_mcap(log: Path, output: Path, options: McapOptions) -> Exported:
    """Write a log as MCAP; the file is written atomically.

    A truncated log is exported up to its end, with a warning.

    Raises:
        LogError: the log cannot be read, is not a log, or has no messages.
        UsageError: the log has no message of the requested members, or the output is not writable.
        ToolError: the drive cannot be read or does not match the log.
    """
    found = Exported()
    try:
        with ExitStack() as stack:
            file = stack.enter_context(mcap_file(output))
            follower = stack.enter_context(followed(options.drive)) if options.drive else None
            views = _Views(file, options, follower) if options.with_views else None
            time = DriveTime()
            _write_all(log, file, views, options, found, time)
            _check_not_empty(log, file, options)
            file.add_facts(
                "modeld",
                {
                    "log": log.name,
                    "clock": "logMonoTime: ns of the recording machine's monotonic clock",
                    "time": time.text(),
                    "damaged messages left out": str(found.damaged),
                    "messages newer than the schema left out": str(found.newer),
                },
            )
            found.topics = dict(sorted(file.counts.items()))
    except OSError as error:
        raise UsageError(
            f"{output}: cannot be written ({error.strerror or error}); free some disk space or "
            "name another file"
        ) from error
    for count, reason in (
        (found.damaged, "whose content is damaged"),
        (found.newer, "newer than this schema"),
    ):
        if count:
            logger.warning("%s: left out %s %s", log, count_text(count, "message"), reason)
    return found


def _check_not_empty(log: Path, file: McapFile, options: McapOptions) -> None:
    """Raise an error if the file would have no messages of the requested kind."""
    messages = sum(n for topic, n in file.counts.items() if topic not in VIEW_SCHEMAS)
    if not messages and options.members:
        raise UsageError(
            f"--service: expected messages of {', '.join(options.members)} in {log}, found none; "
            "modeld inspect lists what it has"
        )
    if not messages:
        raise LogError(f"{log}: expected a log with messages, found none that can be read")
    if options.drive is not None and options.with_views and not file.counts.get(PICTURE_TOPIC):
        raise DriveError(
            f"{log}: expected modelV2 messages of the frames of {options.drive.info.name}, found "
            "none; name the drive that the log was made from"
        )


def _write_all(
    log: Path,
    file: McapFile,
    views: _Views | None,
    options: McapOptions,
    found: Exported,
    time: DriveTime,
) -> None:
    wanted = frozenset(options.members)
    for member, time_ns, event in time.follow(read_log_events(log)):
        options.on_event()
        if member is None:
            found.newer += 1
            continue
        try:
            if not wanted or member in wanted:
                _write_message(file, member, event, time.place_ns(time_ns))
            if views is not None:
                views.take(member, event, time.place_ns(time_ns))
        except (MessageError, *DAMAGED) as error:
            logger.info("%s: %s: %s", log, member, error)
            found.damaged += 1


def _write_message(file: McapFile, member: str, event: Any, log_time_ns: int) -> None:
    # Convert before opening the channel, so that a damaged message opens none.
    message = as_object(message_to_plain(event, "base64"), is_valid=event.valid)
    topic = f"/{member}"
    if not file.has(topic):
        file.open_channel(topic, f"cereal.{member}", message_schema(member), _facts_of(member))
    file.write(topic, log_time_ns, message, event.logMonoTime)


def _facts_of(member: str) -> dict[str, str]:
    service = service_of_member(member)
    if service is None:
        return {}
    rate = f"{service.frequency_hz:g} Hz" if service.frequency_hz else "on demand"
    return {"nominal rate": rate, "valid": "Event.valid is __valid of each message"}


class _Views:
    """Writes channels with well-known schemas, which viewers show without setup."""

    def __init__(self, file: McapFile, options: McapOptions, frames: FrameFollower | None) -> None:
        self._file = file
        self._frames = frames
        self._reader = AnswerReader()
        self._camera: Camera | None = None
        if options.drive is not None:
            mounting = options.drive.info.mounting
            self._reader = AnswerReader(mounting.rpy_rad, mounting.height_m)
            self._camera = main_camera(options.drive.info)
        self._picture_interval_ns = int(NS_PER_S / options.picture_rate_hz)
        self._next_picture_ns = 0

    def take(self, member: str, event: Any, log_time_ns: int) -> None:
        answer = self._reader.take(member, event)
        if answer is None:
            return
        # Use the log time, since viewers also order by the timestamps inside messages.
        answer = replace(answer, mono_time_ns=log_time_ns)
        self._write(SCENE_TOPIC, log_time_ns, foxglove.scene(answer))
        for transform in foxglove.transforms(answer):
            self._write(TRANSFORM_TOPIC, log_time_ns, transform)
        if self._frames is not None:
            self._take_picture(answer, self._frames)

    def _take_picture(self, answer: Answer, frames: FrameFollower) -> None:
        for frame in frames.until(answer.frame_id):
            if frame.frame_id != answer.frame_id or answer.mono_time_ns < self._next_picture_ns:
                continue
            self._next_picture_ns = answer.mono_time_ns + self._picture_interval_ns
            luma, chroma = planes(frame)
            jpeg = encode_jpeg(luma, chroma)
            self._write(
                PICTURE_TOPIC, answer.mono_time_ns, foxglove.picture(jpeg, answer.mono_time_ns)
            )
            if self._camera is not None:
                size = jpeg_size(luma.shape[1], luma.shape[0])
                message = foxglove.camera_calibration(self._camera, size, answer.mono_time_ns)
                self._write(CALIBRATION_TOPIC, answer.mono_time_ns, message)

    def _write(self, topic: str, mono_time_ns: int, message: dict[str, Any]) -> None:
        if not self._file.has(topic):
            name = VIEW_SCHEMAS[topic]
            self._file.open_channel(topic, name, foxglove.SCHEMAS[name], {"made by": "modeld"})
        self._file.write(topic, mono_time_ns, message)


def message_schema(service: str) -> dict[str, Any]:
    """Return the JSON schema of the objects that `as_object` returns.

    `service`: a member of Event.
    """
    kind = next(field.type for field in fields_of(log.Event.schema) if field.name == service)
    schema = _schema_of(kind)
    if schema is None or schema["type"] != "object":
        schema = {"type": "object", "properties": {VALUE_KEY: schema} if schema else {}}
    schema["properties"] = {VALID_KEY: {"type": "boolean"}, **schema["properties"]}
    return {"title": service, **schema}


def as_object(plain: Any, *, is_valid: bool) -> dict[str, Any]:
    """Return the JSON object for a message.

    `plain`: result of `message_to_plain`. `is_valid`: `valid` of the Event.
    """
    body = plain if isinstance(plain, dict) else {VALUE_KEY: plain}
    return {VALID_KEY: is_valid, **body}


def message_text(message: Mapping[str, Any]) -> str:
    """Return a message as strict JSON; non-finite values are under `NOT_FINITE_KEY`."""
    try:
        # This usually succeeds, and is faster than checking every number first.
        return finite_json_text(message)
    except ValueError:
        return finite_json_text(_non_finite_moved(message))


def _non_finite_moved(value: Any) -> Any:
    if isinstance(value, list):
        return [_non_finite_moved(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {name: one for name, one in value.items() if not _is_finite(one)}
    result = {name: _non_finite_moved(one) for name, one in value.items() if name not in moved}
    return {**result, NOT_FINITE_KEY: _texts(moved)} if moved else result


def _is_finite(value: Any) -> bool:
    """Whether a value is not a non-finite number, and not a list that contains one."""
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _schema_of(kind: Type) -> dict[str, Any] | None:
    """Return the schema of a type; None for types without one."""
    if kind.kind == "struct":
        properties = {field.name: _schema_of(field.type) for field in fields_of(kind.schema)}
        return {
            "type": "object",
            "properties": {name: one for name, one in properties.items() if one is not None},
        }
    if kind.kind == "list" and kind.element is not None:
        items = _schema_of(kind.element)
        if items is None or items["type"] == "array":
            return None
        # Viewers decode base64 in fields, but not in elements of lists.
        return {"type": "array", "items": {k: v for k, v in items.items() if k != _ENCODING}}
    if kind.dtype is not None:
        return {"type": _number_type(kind.dtype.kind)}
    if kind.kind in ("enum", "text"):
        return {"type": "string"}
    if kind.kind == "data":
        return {"type": "string", _ENCODING: "base64"}
    return None


_ENCODING = "contentEncoding"


def _number_type(numpy_kind: str) -> str:
    if numpy_kind == "b":
        return "boolean"
    return "integer" if numpy_kind in _INTEGERS else "number"


# Bytes that a viewer decompresses at once when seeking.
CHUNK_BYTES = 1 << 20


class McapFile:
    """An open MCAP file with channels of JSON messages."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def has(self, topic: str) -> bool:
        """Return whether a channel exists."""
        return topic in self._channels

    def open_channel(
        self, topic: str, schema_name: str, schema: Mapping[str, Any], facts: Mapping[str, str]
    ) -> None:
        """Create a channel of JSON messages.

        `schema_name`: name by which viewers recognize the messages. `facts`: metadata of the
        channel.
        """
        if schema_name not in self._schemas:
            text = json_text({"title": schema_name, **schema}).encode()
            self._schemas[schema_name] = self._writer.register_schema(
                schema_name, "jsonschema", text
            )
        self._channels[topic] = self._writer.register_channel(
            topic, "json", self._schemas[schema_name], dict(facts)
        )
        self.counts[topic] = 0

    def write(
        self,
        topic: str,
        log_time_ns: int,
        message: Mapping[str, Any],
        publish_time_ns: int | None = None,
    ) -> None:
        """Write a message to an open channel.

        `log_time_ns`: time at which viewers show it. `message`: its content. `publish_time_ns`:
        time at which it was sent; None: `log_time_ns`.
        """
        self._writer.add_message(
            channel_id=self._channels[topic],
            log_time=log_time_ns,
            data=message_text(message).encode(),
            publish_time=log_time_ns if publish_time_ns is None else publish_time_ns,
            sequence=self.counts[topic],
        )
        self.counts[topic] += 1

    def add_facts(self, name: str, facts: Mapping[str, str]) -> None:
        """Write a metadata record."""
        self._writer.add_metadata(name, dict(facts))


@contextmanager
def mcap_file(path: Path) -> Iterator[McapFile]:
    """Open a new MCAP file, which is written atomically.

    Raises:
        ModuleNotFoundError: the extra ``replay`` is not installed.
        OSError: the file cannot be written; nothing is left.
    """
    from mcap.writer import CompressionType, Writer

    with whole_file(path) as file:
        # The writer's methods have no type annotations.
        writer: Any = Writer(file, chunk_size=CHUNK_BYTES, compression=CompressionType.ZSTD)
        writer.start(profile="", library="modeld")
        yield McapFile(writer)
        writer.finish()
