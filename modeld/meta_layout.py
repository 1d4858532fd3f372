"""Columns of the head `meta`, whose width tells which of three layouts a model has.

Chances of what the driver may do: five horizons (2, 4 .. 10 s) interleave disengagements by cause;
the blinkers of six horizons (0, 2 .. 10 s) follow, which nobody reads. Source: openpilot, 2024-26.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

ENGAGED: Final = 0


@dataclass(frozen=True, slots=True)
class MetaLayout:
    """Where the probabilities of each kind lie, one for each horizon.

    Attributes:
        gas_disengage, brake_disengage, steer_override: the driver takes over by that.
        hard_brake_3, hard_brake_4, hard_brake_5: the car brakes harder than so many m/s^2.
        gas_press, brake_press: the driver presses that pedal; None where a model does not tell
            both.
    """

    gas_disengage: slice
    brake_disengage: slice
    steer_override: slice
    hard_brake_3: slice
    hard_brake_4: slice
    hard_brake_5: slice
    gas_press: slice | None
    brake_press: slice | None


def _layout(
    stop: int, step: int, gas_press: slice | None = None, brake_press: slice | None = None
) -> MetaLayout:
    """Return a layout whose six kinds of disengagement lie at 1..6, then every `step` columns."""
    return MetaLayout(
        gas_disengage=slice(1, stop, step),
        brake_disengage=slice(2, stop, step),
        steer_override=slice(3, stop, step),
        hard_brake_3=slice(4, stop, step),
        hard_brake_4=slice(5, stop, step),
        hard_brake_5=slice(6, stop, step),
        gas_press=gas_press,
        brake_press=brake_press,
    )


META_LAYOUTS: Final[Mapping[int, MetaLayout]] = MappingProxyType(
    {
        # Until Tomb Raider, and again Notre Dame. Column 7 is the gas pedal, but without a brake
        # pedal neither was ever published.
        48: _layout(36, 7),
        53: _layout(41, 8, slice(7, 41, 8), slice(8, 41, 8)),
        # Pedals moved behind the causes, to six horizons with the blinkers.
        55: _layout(31, 6, slice(31, 55, 4), slice(32, 55, 4)),
    }
)
