"""The gate of an endpoint: found, passed, interrupted, and told what is wrong with it."""

import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cereal.errors import TransportError
from cereal.lock_step import Gate, gates_of
from tests.lockstep.events import GENERATIONS, Events

ENDPOINT = "visionipc_camerad_0"
Make = Callable[..., Events]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes events of a generation below a directory in place of /dev/shm."""
    made: list[Events] = []

    def one(
        generation: str, endpoint: str = ENDPOINT, prefix: str = "p", fake_prefix: str = "modeld"
    ) -> Events:
        made.append(Events(generation, endpoint, prefix, fake_prefix, tmp_path, tmp_path))
        return made[-1]

    yield one
    for events in made:
        events.close()


def find(directory: Path, prefix: str = "p", stop: threading.Event | None = None) -> Gate | None:
    is_stopped = (stop or threading.Event()).is_set
    return gates_of("modeld", prefix, is_stopped=is_stopped, directory=directory)(ENDPOINT)


def found(directory: Path, prefix: str = "p", stop: threading.Event | None = None) -> Gate:
    gate = find(directory, prefix, stop)
    assert gate is not None
    return gate


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("prefix", ["", "p"])
def test_each_receive_waits_for_its_permission(
    make: Make, tmp_path: Path, generation: str, prefix: str
) -> None:
    events = make(generation, prefix=prefix)
    gate = found(tmp_path, prefix)
    passed: list[int] = []

    def receive() -> None:
        for number in range(3):
            gate.pass_through()
            passed.append(number)

    receiver = threading.Thread(target=receive)
    receiver.start()
    for number in range(3):
        assert events.wait_called()
        assert not events.is_permitted(), "the permission of the step before was taken"
        assert passed == list(range(number)), "none goes on without a permission"
        events.permit()
    receiver.join()
    assert passed == [0, 1, 2]
    assert not events.wait_called(0)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_stop_ends_waiting(make: Make, tmp_path: Path, generation: str) -> None:
    events, stop = make(generation), threading.Event()
    receiver = threading.Thread(target=found(tmp_path, stop=stop).pass_through)
    receiver.start()
    assert events.wait_called()
    stop.set()
    receiver.join(30)
    assert not receiver.is_alive()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_flag_is_read_at_each_receive(make: Make, tmp_path: Path, generation: str) -> None:
    events = make(generation)
    gate = found(tmp_path)
    for on in (True, False, True):
        events.enable(on)
        assert gate.is_enabled == on


def test_the_state_is_that_of_prefix_process_and_endpoint(make: Make, tmp_path: Path) -> None:
    for generation in GENERATIONS:
        make(generation, endpoint="visionipc_camerad_1")
        make(generation, prefix="other")
        make(generation, fake_prefix="dmonitoringmodeld")
    assert find(tmp_path) is None


def test_a_state_that_is_not_in_force_gives_way(make: Make, tmp_path: Path) -> None:
    left = make("fifos")
    left.enable(False)
    assert found(tmp_path).path == left.state
    assert not found(tmp_path).is_enabled
    now = make("eventfds-2025")
    assert found(tmp_path).path == now.state
    left.enable(True)
    with pytest.raises(TransportError, match=r"expected one harness, found .*; remove what"):
        found(tmp_path)


def test_events_that_nobody_has_taken_are_set_once(make: Make, tmp_path: Path) -> None:
    for generation in GENERATIONS:
        events = make(generation)
        gate = found(tmp_path)
        for _ in range(3):
            # Permitted beforehand, more than once: one receive takes it all.
            events.permit()
            events.permit()
            gate.pass_through()
            assert not events.is_permitted()
        assert events.wait_called(0)
        events.enable(False)


EVENTFDS = "p/cereal_events/modeld/visionipc_camerad_0"
FIFOS = "msgq_p/cereal_events/modeld/visionipc_camerad_0"


def fifo_state(called: bytes, ready: bytes) -> bytes:
    return called.ljust(128, b"\0") + ready.ljust(128, b"\0") + b"\1"


@pytest.mark.parametrize(
    ("generation", "content", "message"),
    [
        ("eventfds-2025", b"", r"expected 12 bytes that describe eventfds, found 0; remove"),
        ("eventfds-2026", b"\0" * 11, r"expected 12 bytes .*, found 11"),
        ("eventfds-2025", struct.pack("<3i", -1, 0, 1), "descriptor -1 to be an eventfd"),
        ("eventfds-2025", struct.pack("<3i", 1 << 30, 0, 1), "eventfd .* found nothing; start"),
        ("eventfds-2026", struct.pack("<3i", 1, 2, 1), "descriptor 1 to be an eventfd"),
        ("fifos", b"\0" * 256, "expected 257 bytes that describe FIFOs, found 256"),
        ("fifos", fifo_state(b"", b""), "expected the path of a FIFO of the harness, found ''"),
        ("fifos", fifo_state(b"/nowhere/0", b"/nowhere/1"), "'/nowhere/0': No such file"),
        ("fifos", fifo_state(b"/dev/null", b"/dev/null"), "found '/dev/null'; restart"),
        ("fifos", fifo_state(b"/" * 128, b"x"), "path of a FIFO"),
        ("fifos", fifo_state(b"\xff\xfe", b"x"), "path of a FIFO"),
    ],
)
def test_what_is_damaged_is_told(
    make: Make, tmp_path: Path, generation: str, content: bytes, message: str
) -> None:
    events = make(generation)
    events.state.write_bytes(content)
    with pytest.raises(TransportError, match=message) as told:
        found(tmp_path)
    assert str(events.state) in str(told.value)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_is_damaged_later_is_told(make: Make, tmp_path: Path, generation: str) -> None:
    events = make(generation)
    gate = found(tmp_path)
    os.truncate(events.state, 3)
    with pytest.raises(TransportError, match="found 3"):
        gate.is_enabled  # noqa: B018 -- reading it is what is tested


def test_random_states_are_told_or_taken(make: Make, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1)
    for generation in GENERATIONS:
        events = make(generation)
        events.enable(False)
        for _ in range(100):
            events.state.write_bytes(numbers.bytes(int(numbers.integers(300))))
            try:
                found(tmp_path)
            except TransportError:
                continue
        events.state.unlink()
