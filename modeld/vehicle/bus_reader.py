"""Reads each message of the vehicle once and checks it by the rules of ``validity``.

An impossible value counts as zero, and is logged; the reasons for invalid messages go with the read
values.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import Fault
from modeld.vehicle.desire import VehicleState
from modeld.vehicle.inputs import BusInputs
from modeld.vehicle.validity import (
    LATERAL_ACTIVE,
    LATERAL_DELAY,
    SPEED,
    TORQUE,
    Freshness,
    InputRule,
    Reason,
    Received,
    silence,
)


class MessageSource(Received, Protocol):
    """The part of ``cereal.pubsub.SubMaster`` that is read here."""

    @property
    def rejected(self) -> Mapping[str, int]:
        """How many were no message of the service, by service."""

    @property
    def rejected_why(self) -> Mapping[str, str]:
        """The defect of the last of them, by service."""

    @property
    def frame(self) -> int:
        """Number of updates so far, from 0."""

    def __getitem__(self, service: str) -> Any:
        """Return the newest message of a service, default-initialised before the first."""


# Services of 1 Hz and more say it again before it counts as over.
_QUIET_NS: Final = 2 * NS_PER_S


class BusReader:
    """Reads the newest messages, each once; those never received have their schema defaults.

    `clip_speed` is that of `ActionRule`; another model may change it. `read` brings `freshness` up
    to date. `delay_to_use` is for stacks whose users set the lateral delay: it gets the delay that
    the stack measures, in s, and the number of the update; None uses the measured one.
    """

    def __init__(
        self,
        messages: MessageSource,
        episodes: Episodes,
        *,
        freshness: Freshness,
        clip_speed: bool = True,
        delay_to_use: Callable[[float, int], float] | None = None,
    ) -> None:
        self._messages = messages
        self._episodes = episodes
        self.clip_speed = clip_speed
        self._freshness = freshness
        self._delay_to_use = delay_to_use
        self._car = VehicleState()
        self._lateral_active = False
        self._is_rhd = False
        self._delay_s = 0.0
        self._road_frame_id = 0
        self._broken: dict[InputRule, Reason] = {}
        self._garbage = GarbageWatch(messages, episodes)

    def read(self, now_ns: int) -> BusInputs:
        """Return the inputs that hold at `now_ns`, of the loop's clock."""
        messages, updated = self._messages, self._messages.updated
        self._garbage.look()
        if updated["carControl"]:
            self._lateral_active = messages["carControl"].latActive
        if updated["carState"]:
            self._take_car(messages["carState"])
        if updated["driverMonitoringState"]:
            self._is_rhd = messages["driverMonitoringState"].isRHD
        if updated["liveDelay"]:
            self._delay_s = self._checked(LATERAL_DELAY, messages["liveDelay"].lateralDelay)
        if updated["roadCameraState"]:
            self._road_frame_id = messages["roadCameraState"].frameId
        vehicle, reasons = self._car, tuple(self._broken.values())
        active = self._lateral_active
        freshness = self._freshness
        freshness.update(now_ns)
        active = active and not freshness.silent_for_s(LATERAL_ACTIVE, now_ns)
        silent_s = freshness.silent_for_s(SPEED, now_ns)
        if silent_s:
            # The last speed is the best guess; without a message the driver wants nothing.
            vehicle = VehicleState(v_ego_mps=vehicle.v_ego_mps)
            reasons = (*reasons, silence(SPEED, silent_s))
        if vehicle.lateral_active is not active:
            vehicle = replace(vehicle, lateral_active=active)
        delay_s = self._delay_s
        if self._delay_to_use is not None:
            delay_s = self._delay_to_use(delay_s, messages.frame)
        return BusInputs(vehicle, self._is_rhd, delay_s, self._road_frame_id, reasons)

    def _take_car(self, car: Any) -> None:
        speed_mps = self._checked(SPEED, car.vEgo)
        self._car = VehicleState(
            v_ego_mps=max(0.0, speed_mps) if self.clip_speed else speed_mps,
            left_blinker=car.leftBlinker,
            right_blinker=car.rightBlinker,
            steering_pressed=car.steeringPressed,
            steering_torque=self._checked(TORQUE, car.steeringTorque),
            left_blindspot=car.leftBlindspot,
            right_blindspot=car.rightBlindspot,
            lateral_active=self._lateral_active,
        )

    def _checked(self, rule: InputRule, value: float) -> float:
        """Return a value that the rule allows: itself or 0."""
        if rule.allows(value):
            if self._broken:
                self._broken.pop(rule, None)
            return value
        name, text = f"{rule.service}.{rule.field}", rule.describe(value)
        kind = Kind(f"{name} out of bounds", fault=Fault.INPUT_REJECTED, quiet_ns=_QUIET_NS)
        self._episodes.happen(kind, f"{text}; it counts as 0")
        if rule.marks:
            self._broken[rule] = Reason(kind.name, text)
        return 0.0


class GarbageWatch:
    """Reports services that send data other than their messages."""

    def __init__(self, messages: MessageSource, episodes: Episodes) -> None:
        self._messages = messages
        self._episodes = episodes
        self._known = dict(messages.rejected)

    def look(self) -> None:
        """Look at what has been rejected since the last look; once after each update."""
        messages = self._messages
        if messages.rejected == self._known:
            return
        for name, count in messages.rejected.items():
            if count != self._known[name]:
                self._known[name] = count
                kind = Kind(f"garbage {name}", fault=Fault.MESSAGE_REJECTED, quiet_ns=_QUIET_NS)
                self._episodes.happen(
                    kind, f"{name}: message rejected: {messages.rejected_why[name]}"
                )
