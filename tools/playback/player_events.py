"""Lists the events of a moment of a drive with their times."""

from __future__ import annotations

from typing import Final, NamedTuple

from cereal.frames import Frame
from tools.drives.drive import DriveInfo, Message, Moment

STATE_OF_STREAM: Final = {
    "road": "roadCameraState",
    "wideRoad": "wideRoadCameraState",
    "driver": "driverCameraState",
}


class Event(NamedTuple):
    """What happens at one time: a message, or a frame (the other is None)."""

    time_ns: int
    message: Message | None
    frame: tuple[str, Frame] | None


def main_stream(info: DriveInfo) -> str:
    """Return the stream that paces a drive: the road camera, else the wide one, else any."""
    return next(
        (name for name in ("road", "wideRoad") if name in info.formats),
        next(iter(info.formats), "road"),
    )


def events_of(moment: Moment) -> list[Event]:
    """Return what happens in a moment, in time order.

    A frame comes at the time of the message that announces it, just before it, but not after the
    frames that are to be handed over after it. One that nothing announces comes at the end of its
    exposure, within the time of the moment's messages.
    """
    messages = moment.messages
    announced = {message.service: message.mono_time_ns for message in messages}
    times: list[int] = []
    for stream, frame in moment.frames.items():
        time_ns = announced.get(STATE_OF_STREAM[stream])
        if time_ns is None:
            time_ns = frame.timestamp_eof_ns
            if messages:
                first_ns, last_ns = messages[0].mono_time_ns, messages[-1].mono_time_ns
                time_ns = min(max(time_ns, first_ns), last_ns)
        times.append(time_ns)
    for index in reversed(range(len(times) - 1)):
        times[index] = min(times[index], times[index + 1])
    events = [
        Event(time_ns, None, (stream, frame))
        for time_ns, (stream, frame) in zip(times, moment.frames.items(), strict=True)
    ]
    events += [Event(message.mono_time_ns, message, None) for message in messages]
    # Stable: frames stand first, so they precede messages of the same time.
    events.sort(key=lambda event: event.time_ns)
    return events
