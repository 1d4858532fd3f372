"""A camera process of another user: the wait for cameras says whose the ring is."""

import os

import pytest

from cereal.frames import FrameRingWriter, nv12_format
from tests.other_user import DAEMON_USER, OWN_GROUP, SHARED_GROUP, line, needs_root, process_of

IMPORTS = """
import logging, threading
from cereal.clock import MonotonicClock
from cereal.cameras import RingCameras
from modeld.state.episodes import Episodes
from modeld.state.loop_state import LoopState
from modeld.startup import wait_for_cameras, wait_for_driver_camera
"""
WAIT = """
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
episodes = Episodes(MonotonicClock(), logging.getLogger("wait"), LoopState())
wait = wait_for_driver_camera if arguments[1] == "driver" else wait_for_cameras
cameras = wait(RingCameras(arguments[0]), threading.Event(), episodes)
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
