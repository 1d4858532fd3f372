"""The moving picture of a drive: an animated WebP of a known number of pictures, and bounded."""

import pytest

from tools.messages.drive_log import Curves
from tools.simulator.closed_loop import film as clip
from tools.simulator.closed_loop.film import SIZE, Scene, make_clip, scene_of, true_curves
from tools.simulator.closed_loop.simulation import TICKS_PER_FRAME, Simulation
from tools.simulator.closed_loop.trial import STANDARD, Trial, make_trial

FRAMES = 4


@pytest.fixture(scope="module")
def driven() -> tuple[Trial, dict[int, Scene], dict[int, Curves]]:
    """A few frames of a drive, answered as a perfect model would."""
    trial = make_trial(STANDARD, 38, 100.0)
    simulation = Simulation(trial)
    scenes: dict[int, Scene] = {}
    for frame in range(10, 10 + FRAMES):
        scenes[frame] = scene_of(simulation)
        for _ in range(TICKS_PER_FRAME):
            simulation.tick()
    return trial, scenes, {frame: true_curves(trial, scene) for frame, scene in scenes.items()}


def test_every_second_frame_is_shown_for_a_tenth_of_a_second(
    driven: tuple[Trial, dict[int, Scene], dict[int, Curves]],
) -> None:
    data = make_clip(*driven)
    assert (data[:4], data[8:12]) == (b"RIFF", b"WEBP")
    frames = [at for at in range(len(data)) if data.startswith(b"ANMF", at)]
    assert len(frames) == FRAMES / clip.EVERY
    # A frame's header: place and size in 3 bytes each, then its duration in ms.
    sizes = [int.from_bytes(data[at + 14 : at + 17], "little") + 1 for at in frames]
    assert sizes[0] == SIZE[0]
    durations = [int.from_bytes(data[at + 20 : at + 23], "little") for at in frames[:-1]]
    assert durations == [100] * (len(frames) - 1)
    assert int.from_bytes(data[data.index(b"ANIM") + 12 :][:2], "little") == 0  # without end
    assert len(data) < 60_000


def test_what_is_too_large_or_has_no_answers_is_left_out(
    driven: tuple[Trial, dict[int, Scene], dict[int, Curves]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, scenes, curves = driven
    assert make_clip(trial, scenes, {10: curves[10]}) == b""
    monkeypatch.setattr(clip, "MAX_BYTES", 1000)
    assert make_clip(trial, scenes, curves) == b""
