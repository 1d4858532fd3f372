"""What each revision of the driving models does, as the history of openpilot tells it.

Written by hand from that history, not from the compiler's files: a mistake in either shows.
"""

from dataclasses import dataclass, replace

CONSECUTIVE_99 = tuple(range(-99, 0))
CONSECUTIVE_100 = tuple(range(-99, 1))
PAST_24 = tuple(range(-96, 0, 4))
PAST_32 = tuple(range(-128, 0, 4))
OWN_25 = tuple(range(-96, 1, 4))
CURVATURES_100 = tuple(range(-100, 0))
CURVATURES_25 = tuple(range(-97, 0, 4))


@dataclass(frozen=True, slots=True)
class Facts:
    """One revision; without more it is that of 0.9.7. Ages are in frames, relative to a run."""

    order: tuple[str, ...] = ("supercombo",)  # roles of its models, in the order they run
    image_mode: str = "bilinear"  # or "nearest"
    image_gap: int = 1  # frames between the two pictures of a camera; 0 in the graph
    desire: tuple[int, int] | None = (100, 1)  # groups, frames in each; None in the graph
    features: tuple[int, ...] = CONSECUTIVE_99  # ages of the rows that a model sees
    features_current: bool = False  # a run sees its own frame's
    curvatures: tuple[int, ...] = CURVATURES_100  # ages of the rows that a model sees
    curvature_scale: float = 1.0  # of what is stored
    drop: str = "skip"  # or "run"
    lateral: str = "desired_curvature"  # or "plan", "action"
    longitudinal: str = "none"  # or "plan", "action"
    delay: str = "steerActuatorDelay"  # or "liveDelay"
    extra_delay: float = 0.2  # s more
    frame_delay: float = 0.0  # s on top of both delays
    lat_tau: float = 0.0  # s, of the filter
    long_tau: float = 0.0
    hold_below: float = 0.0  # m/s at or below which the curvature stays; 0 for never
    stop: str = "plan"  # or "speed"
    clip_speed: bool = False  # speeds below 0 count as 0
    meta: int = 48  # width of the head
    machine: str = "A"  # of lane changes
    big: bool = False  # flag in the messages


_097 = Facts()
_TOMB_RAIDER = replace(_097, meta=53)
_CLIPPED = replace(_TOMB_RAIDER, clip_speed=True)
_20HZ = replace(
    _CLIPPED,
    image_gap=4,
    desire=(25, 4),
    features=PAST_24,
    curvatures=CURVATURES_25,
    curvature_scale=0.0,
    meta=55,
)
_NULL_POINTER = replace(_20HZ, lateral="plan")
_NORTH_AMERICA = replace(_NULL_POINTER, curvatures=())
_NOTRE_DAME = replace(_097, clip_speed=True)
_098 = replace(_NOTRE_DAME, meta=55)
_SPLIT = replace(_098, order=("vision", "policy"), features=CONSECUTIVE_100, features_current=True)
_FILET_O_FISH = replace(
    _SPLIT, image_gap=4, desire=(25, 4), features=OWN_25, curvatures=CURVATURES_25
)
_099 = replace(_FILET_O_FISH, longitudinal="plan", frame_delay=0.05)
_TR2 = replace(_099, lat_tau=0.3, long_tau=0.3, curvature_scale=0.0)
_HELD = replace(_TR2, hold_below=0.3)
_LIVE_DELAY = replace(_HELD, delay="liveDelay", extra_delay=0.0)
_TR14 = replace(_LIVE_DELAY, lateral="plan", lat_tau=0.1)
_STEAM_POWERED = replace(_TR14, curvatures=())
_NEAREST = replace(_STEAM_POWERED, image_mode="nearest")
_ON_OFF = replace(_NEAREST, order=("vision", "off_policy", "on_policy"))
_ON_OFF_2026 = replace(_ON_OFF, lat_tau=0.0, machine="B")
_ON_OFF_ACTION = replace(
    _ON_OFF_2026, frame_delay=0.075, lateral="action", longitudinal="action", stop="speed"
)
_2026 = replace(
    _STEAM_POWERED,
    order=("supercombo",),
    image_mode="nearest",
    features=PAST_24,
    features_current=False,
    drop="run",
    frame_delay=0.075,
    lat_tau=0.0,
    machine="B",
)
_BIG = replace(_2026, big=True, lateral="action", longitudinal="action", stop="speed")
_BIG_33 = replace(_BIG, desire=(33, 4), features=PAST_32)
_IN_GRAPH = replace(_2026, image_gap=0, desire=None, features=())

TABLE: dict[str, Facts] = {
    "supercombo-0.9.7": _097,
    "supercombo-2024-09": _TOMB_RAIDER,
    "supercombo-2024-10": _CLIPPED,
    "mlsim-2024-10": _20HZ,
    "mlsim-2024-12-13": _NULL_POINTER,
    "mlsim-2024-12-16": _NORTH_AMERICA,
    "supercombo-2025-01": _NOTRE_DAME,
    "supercombo-0.9.8": _098,
    "split-2025-02": _SPLIT,
    "split-2025-03": _FILET_O_FISH,
    "split-0.9.9": _099,
    "split-2025-04-17": _TR2,
    "split-2025-04-23": _HELD,
    "split-2025-05-24": _LIVE_DELAY,
    "split-2025-07-02": _TR14,
    "split-2025-07-16": _TR14,
    "split-2025-08-11": _TR14,
    "split-2025": _STEAM_POWERED,
    "split-2025-11": _NEAREST,
    "on-off-2025": _ON_OFF,
    "on-off-2026": _ON_OFF_2026,
    "on-off-2026-action": _ON_OFF_ACTION,
    "supercombo-2026": _2026,
    "supercombo-2026-action": _BIG,
    "supercombo-2026-08": _BIG_33,
    "history-2026": _IN_GRAPH,
}
