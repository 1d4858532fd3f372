"""Rings of killed sessions go; those of living processes, and of other names, stay."""

import os
import subprocess
import sys
from pathlib import Path

from cereal.frames import FrameRingWriter, nv12_format
from tests.left_rings import remove_left_rings

FORM = nv12_format(64, 32)
KILLED = """
import os, signal, sys
from pathlib import Path
from cereal.frames import FrameRingWriter, nv12_format
place = Path(sys.argv[1])
writers = [
    FrameRingWriter(f"{name}-{os.getpid()}{more}", "wideRoad", nv12_format(64, 32), directory=place)
    for name, more in (("test", ""), ("faults", "_3"))
]
FrameRingWriter("camera", "road", nv12_format(64, 32), directory=place)
(place / f".frames_test_road.{os.getpid()}.123456").touch()
for name in ("test", "msgq_test"):
    (place / f"{name}-{os.getpid()}-0a1b").mkdir()
    (place / f"{name}-{os.getpid()}-0a1b/carState").touch()
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(place: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(place)], capture_output=True, text=True, check=False
    )
    return int(done.stdout)


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir() if "frames_" in path.name}


def test_rings_of_killed_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    left, taken_over = killed(tmp_path), killed(tmp_path)
    assert names(tmp_path) == {
        *(f"frames_test-{pid}_wideRoad" for pid in (left, taken_over)),
        *(f"frames_faults-{pid}_3_wideRoad" for pid in (left, taken_over)),
        *(f".frames_test_road.{pid}.123456" for pid in (left, taken_over)),
        "frames_camera_road",
    }
    own = FrameRingWriter(f"test-{os.getpid()}", "road", FORM, directory=tmp_path)
    of_ours = tmp_path / f"frames_other-{os.getpid()}_road"
    of_ours.touch()
    # Named by a process that is gone, but somebody writes it.
    again = FrameRingWriter(f"test-{taken_over}", "wideRoad", FORM, directory=tmp_path)
    own_place = tmp_path / f"msgq_test-{os.getpid()}-0a1b"
    own_place.mkdir()
    assert len(list(tmp_path.glob("*test-*-0a1b"))) == 5
    remove_left_rings(tmp_path)
    assert list(tmp_path.glob("*test-*-0a1b")) == [own_place]
    kept = {f"frames_test-{taken_over}_wideRoad", f"frames_test-{os.getpid()}_road", of_ours.name}
    # Whose the camera's was its name does not say.
    assert names(tmp_path) == kept | {"frames_camera_road"}
    own.close()
    again.close()
