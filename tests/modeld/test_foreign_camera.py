"""A camera process of another user: the wait for cameras, and what runs, say whose the ring is."""

from __future__ import annotations

import os
from subprocess import Popen

import pytest

from cereal.frames import FrameRingWriter, nv12_format
from tests.other_user import DAEMON_USER, OWN_GROUP, SHARED_GROUP, line, needs_root, process_of

IMPORTS = """
import logging, threading
from cereal.clock import MonotonicClock
from modeld.episodes import Episodes
from modeld.loop_state import LoopState
from modeld.loop_state import Phase
from modeld.side_reports import RingReport
from modeld.startup import wait_for_cameras, wait_for_driver_camera
"""
# Each line is a look of the report; "valid" tells that a valid message has gone out before it.
RUN = """
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
state = LoopState(phase=Phase.RUNNING)
report = RingReport(arguments[0], ("road", "wideRoad"), state)
for text in iter(sys.stdin.readline, ""):
    state.valid += text.strip() == "valid"
    report(0)
    print("looked", flush=True)
"""
WAIT = """
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
episodes = Episodes(MonotonicClock(), logging.getLogger("wait"), LoopState())
wait = wait_for_driver_camera if arguments[1] == "driver" else wait_for_cameras
cameras = wait(arguments[0], threading.Event(), episodes)
print("connected", flush=True)
"""


def ring_of(server: str, stream: str, group: int) -> FrameRingWriter:
    """As a camera process of root with this first group makes it."""
    before = os.getegid()
    os.setegid(group)
    try:
        return FrameRingWriter(server, stream, nv12_format(64, 32))
    finally:
        os.setegid(before)


@needs_root
@pytest.mark.parametrize("stream", ["road", pytest.param("driver", marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", [OWN_GROUP, SHARED_GROUP])
def test_a_camera_of_another_group_is_named_and_one_of_the_group_is_used(
    group: int, stream: str
) -> None:
    server = f"test-foreign-{os.getpid()}"
    camera = ring_of(server, stream, SHARED_GROUP)
    ring = f"frames_{server}_{stream}"
    wanted = f"{ring} belongs to root:{SHARED_GROUP} with mode 0640, this process is {DAEMON_USER}"
    if group == SHARED_GROUP:
        wanted = "connected"
    try:
        with process_of(
            WAIT, server, stream, user=DAEMON_USER, group=group, imports=IMPORTS
        ) as daemon:
            said: list[str] = []
            while not said or wanted not in said[-1]:
                assert daemon.poll() is None or wanted == "connected", said
                said.append(line(daemon))
                assert "Traceback" not in said[-1]
    finally:
        camera.close()


def looks(daemon: Popen[str], word: str = "go") -> list[str]:
    """Let the report look once; return what it says."""
    assert daemon.stdin is not None
    daemon.stdin.write(f"{word}\n")
    daemon.stdin.flush()
    said: list[str] = []
    while not said or said[-1] != "looked":
        assert daemon.poll() is None, said
        said.append(line(daemon))
        assert "Traceback" not in said[-1]
    return said[:-1]


@pytest.mark.slow
@needs_root
def test_a_camera_that_comes_back_with_another_group_is_named_while_running() -> None:
    server = f"test-foreign-{os.getpid()}"
    driver = ring_of(server, "driver", SHARED_GROUP)
    camera = ring_of(server, "road", OWN_GROUP)
    ring = f"frames_{server}_road"
    refused = f"{ring} belongs to root:{SHARED_GROUP} with mode 0640, this process is {DAEMON_USER}"
    try:
        with process_of(RUN, server, user=DAEMON_USER, group=OWN_GROUP, imports=IMPORTS) as daemon:
            # A ring that is not read concerns nobody.
            assert looks(daemon) == []
            camera.close()
            assert looks(daemon) == []
            camera = ring_of(server, "road", SHARED_GROUP)
            # What goes out has come from somewhere.
            assert looks(daemon, "valid") == []
            (said,) = looks(daemon)
            assert said.startswith("camera rings cannot be read: ")
            assert refused in said
            assert looks(daemon) == looks(daemon, "valid") == []
            camera.close()
            camera = ring_of(server, "road", OWN_GROUP)
            assert looks(daemon) == ["camera rings can be read again"]
            assert looks(daemon) == []
    finally:
        camera.close()
        driver.close()
