"""The parameters of the stack that the loop follows while it runs.

See ADR 0082. A bad parameter never ends the loop.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from modeld.vehicle.inputs import CarParameters
from modeld.vehicle.param_values import BUNDLE, CAMERA_OFFSET, CAR, OWN_DELAY, USES_OWN_DELAY
from modeld.vehicle.params import Params
from runtime.format.driving_interface import ActionRule
from runtime.format.manifest import ModelSource

logger = logging.getLogger(__name__)

# How often parameters are looked up: 3 s at 20 Hz.
PERIOD_UPDATES: Final = 60
# As often as openpilot looks for a parameter that it waits for, whatever messages come meanwhile.
PERIOD_MS: Final = 100


@dataclass(slots=True)
class UserDelay:
    """The lateral delay of a stack whose users may set one: read from time to time."""

    params: Params
    delay_s: float = 0.0  # in force

    def update(self, measured_s: float, update: int) -> float:
        """Return the delay to use, s: the stack's `measured_s`, unless the user has set another.

        Each `PERIOD_UPDATES`-th `update` of the bus, from 0, reads the parameter.
        """
        if update % PERIOD_UPDATES == 0:
            chosen = self.params.usable(OWN_DELAY) if self.params.usable(USES_OWN_DELAY) else None
            self.delay_s = measured_s if chosen is None else chosen
        return self.delay_s


@dataclass(frozen=True, slots=True)
class CarWatch:
    """The car of each drive: the stack removes its parameter at the begin, and writes a new one.

    openpilot starts its daemon for each drive; this one may live through several.
    """

    params: Params | None  # None: the car stays

    def update(self, car: CarParameters, update: int) -> CarParameters:
        """Return the car to use: the one in use, until the parameter changes.

        Each `PERIOD_UPDATES`-th `update` of the bus looks.
        """
        if self.params is None or update % PERIOD_UPDATES:
            return car
        found = self.params.usable(CAR)
        if found is None or found == car:
            return car
        logger.info("car: %s, as the parameter says now", found.name)
        return found


def tell_differences(params: Params, models: Sequence[ModelSource], rule: ActionRule) -> None:
    """Warn of choices of the stack's user that this daemon does not follow, a line for each."""
    offset_m = params.usable(CAMERA_OFFSET)
    if offset_m:
        logger.warning("CameraOffset is %g m and is not applied: set it to 0", offset_m)
    bundle = params.usable(BUNDLE)
    if bundle is None:
        return
    if not bundle.is_named_in(name for one in models for name in (one.checkpoint, one.file)):
        logger.warning(
            "the stack's model is %r (%s, generation %d), this artifact is another one: %s; what "
            "was set for that model may not fit",
            bundle.name,
            bundle.ref or "no ref",
            bundle.generation,
            ", ".join(f"{one.role} {one.checkpoint or one.file}" for one in models),
        )
        return
    for key, in_force_s in (("lat", rule.lat_smooth_s), ("long", rule.long_smooth_s)):
        wanted_s = bundle.smoothing_s(key)
        if wanted_s != in_force_s:
            logger.warning(
                "the stack smooths what %r says by %s %g s, here %g s are in force: %s_smooth_s",
                bundle.name, key, wanted_s, in_force_s, key,
            )  # fmt: skip
