"""Messages to the page: one JSON object and one JPEG picture in one binary message.

Bytes: the length of the JSON text as uint32, little endian; the text, UTF-8; the picture, or
nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tools.lib.json_output import json_text
from tools.live.fields import FieldPath, Sample
from tools.live.newest import COLUMNS, Row, Surroundings
from tools.live.scene import CameraTable, View, describe_answer, project_answer
from tools.views.answer import Answer

Json = dict[str, Any]

_LENGTH: Final = struct.Struct("<I")
# What plots show of a daemon that runs, and of a log before its present moment.
WINDOW_S: Final = 30.0


def pack(message: Json, jpeg: bytes = b"") -> bytes:
    """Return the bytes of one message; numbers that are not finite are null."""
    text = json_text(message).encode()
    return b"".join((_LENGTH.pack(len(text)), text, jpeg))


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture as it is shown."""

    camera: str  # stream
    frame_id: int | None = None
    # Width and height of the frame in pixels; what is drawn over it is in these.
    size: tuple[int, int] = (0, 0)
    jpeg: bytes = b""  # the picture, possibly smaller
    why_not: str = ""  # in place of a picture, for a person; "" where there is one


@dataclass(frozen=True, slots=True)
class Moment:
    """All that is shown of one moment."""

    answer: Answer | None  # of the model; None: there is none
    around: Surroundings  # calibration and device
    shown: Shown  # the picture
    health: Json | None  # as ``describe_health`` returns it
    other: Answer | None = None  # the answer of another log to the same frame; None: there is none
    more: Json = field(default_factory=dict)  # what else the message holds

    def message(self, table: CameraTable) -> Json:
        """Return the message without its picture."""
        answer, shown, around = self.answer, self.shown, self.around
        view, note = None, ""
        if shown.jpeg and answer is not None:
            view, note = table.view(shown.camera, shown.size, around)
        return {
            "kind": "moment",
            **_answer(answer, view),
            "other": None if self.other is None else _answer(self.other, view),
            "picture": {
                "camera": shown.camera,
                "frameId": shown.frame_id,
                "width": shown.size[0],
                "height": shown.size[1],
                "whyNot": shown.why_not,
                "note": note,
            },
            "calibration": {
                "status": around.calibration,
                "rpy": [round(angle, 5) for angle in around.rpy_rad],
                "height": round(around.height_m, 3),
            },
            "hardware": _hardware(around),
            "health": self.health,
            **self.more,
        }


def _answer(answer: Answer | None, view: View | None) -> Json:
    """Return what is drawn of an answer, in metres and in pixels."""
    return {
        "model": None if answer is None else describe_answer(answer),
        "overlay": None if answer is None or view is None else project_answer(answer, view),
    }


def _hardware(around: Surroundings) -> str:
    parts = {"device": around.device_type, "sensor": around.sensor}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


def hello(mode: str, title: str, more: Json) -> Json:
    """Return the first message of a connection.

    `mode`: "live" or "log". `title`: what is watched. `more`: what else the page needs to know of
    it.
    """
    return {
        "kind": "hello",
        "mode": mode,
        "title": title,
        "columns": list(COLUMNS),
        "digits": list(COLUMNS.values()),
        "window": WINDOW_S,
        **more,
    }


def rows_json(rows: list[Row]) -> list[list[float | None]]:
    """Return rows for a message."""
    return [list(row) for row in rows]


def samples_json(samples: Iterable[Sample], fields: Sequence[FieldPath]) -> Json:
    """Return samples of the fields that a viewer looks at: times and values by field."""
    found: dict[str, tuple[list[float], list[Any]]] = {one.text: ([], []) for one in fields}
    for text, time_s, value in samples:
        if text in found:
            found[text][0].append(time_s)
            found[text][1].append(value)
    return {text: list(pair) for text, pair in found.items() if pair[0]}
