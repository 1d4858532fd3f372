"""Devices that record launches, each by another extension, and what the layer has counted."""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from runtime.opencl.device import Device, choose_device

KIND = "MODELD_TEST_RECORDINGS"
CHANGING = ("qcom", "khr", "khr-linked")  # arguments of recordings can change
COUNTERS = ("launches", "replays", "updates", "living")
FAILURES = ("find", "new", "record", "end", "replay", "update", "finish")


class Layer:
    """The layer's counters, and the status that its functions are to fail with."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["OPENCL_LAYERS"])

    def reset(self) -> None:
        """Let nothing fail; recordings hold 128 launches."""
        for name in FAILURES:
            self.fail(name, 0)
        self.set_longest(128)
        self.take()

    def fail(self, name: str, status: int) -> None:
        """Let the next calls of a function return a status."""
        ctypes.c_int.in_dll(self._library, f"fail_{name}").value = status

    def set_longest(self, launches: int) -> None:
        """Let a recording hold that many launches."""
        ctypes.c_uint.in_dll(self._library, "longest").value = launches

    def take(self) -> dict[str, int]:
        """Return what was counted since the last time; `living` recordings are all there are."""
        cells = {name: ctypes.c_int.in_dll(self._library, name) for name in COUNTERS}
        found = {name: cell.value for name, cell in cells.items()}
        for name in COUNTERS[:3]:
            cells[name].value = 0
        return found


@pytest.fixture(autouse=True)
def layer() -> Iterator[Layer]:
    """The layer, with nothing counted; afterwards every recording has been given back."""
    if "OPENCL_LAYERS" not in os.environ:
        pytest.skip("tests/runtime/test_recording.py runs them, under the layer")
    found = Layer()
    found.reset()
    yield found
    found.reset()
    assert found.take()["living"] == 0


@pytest.fixture
def kind() -> str:
    """The extension of the device: see layer.c."""
    return "qcom"


@pytest.fixture
def device(kind: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that records; in all else one that is not PoCL's, whose memory the host has not."""
    monkeypatch.setenv(KIND, kind)
    found = choose_device("pocl")
    return replace(found, info=replace(found.info, platform="another", kind="gpu"))
