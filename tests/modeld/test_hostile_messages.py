"""Every hostile message is looked at, rejected or taken, and costs no memory that stays."""

import logging
import os

import pytest

from cereal.clock import ManualClock
from cereal.pubsub import SubMaster
from cereal.transport import MemoryTransport
from modeld.state.episodes import Episodes
from modeld.state.loop_state import LoopState
from modeld.vehicle.inputs import SUBSCRIPTIONS, BusReader
from modeld.vehicle.validity import Freshness
from tests.support.hostile import HostileMessages, own_memory_mib

MESSAGES = 200_000
# What Python's own pools may take: an eighth of a kept message of 100 bytes each.
MOST_GROWTH_MIB = 4.0


@pytest.mark.slow
def test_all_are_looked_at_and_none_stays() -> None:
    logging.disable(logging.CRITICAL)
    transport, clock = MemoryTransport(), ManualClock(1)
    messages = SubMaster(SUBSCRIPTIONS, transport, clock)
    publishers = {name: transport.publisher(name) for name in SUBSCRIPTIONS}
    episodes = Episodes(clock, logging.getLogger("hostile"), LoopState())
    reader = BusReader(messages, episodes, freshness=Freshness(messages, enabled=True))
    hostile = HostileMessages(1, SUBSCRIPTIONS)
    rounds, taken, memory = MESSAGES // len(SUBSCRIPTIONS) + 1, 0, []
    for number in range(rounds):
        for name in SUBSCRIPTIONS:
            publishers[name].send(hostile.next(name))
        clock.advance_ns(50_000_000)
        messages.update()
        reader.read(clock.now_ns())
        taken += sum(messages.updated.values())
        if number in (rounds // 3, rounds // 3 * 2, rounds - 1):
            memory.append(own_memory_mib(os.getpid()))
    logging.disable(logging.NOTSET)
    rejected = messages.rejected
    assert taken + sum(rejected.values()) == rounds * len(SUBSCRIPTIONS) >= MESSAGES
    assert min(rejected.values()) > rounds // 4, rejected
    assert taken > rounds
    assert memory[-1] - memory[0] < MOST_GROWTH_MIB, memory
