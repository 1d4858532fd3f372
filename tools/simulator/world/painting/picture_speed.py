"""Measures the rendering speed of worlds: run it as `python -m` with this module."""

from __future__ import annotations

import argparse
import sys
import time

from modeld.vehicle.cameras import Camera
from tools.simulator.world.car import body_at
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.traffic import Traffic
from tools.simulator.world.view import MED_LENS, WIDE_LENS, Lens, Mount
from tools.simulator.world.world import World, random_world

# The smallest camera of a current device (openpilot's os04c10), with its two focal lengths.
_LENSES = {
    "model's view": MED_LENS,
    "model's wide view": WIDE_LENS,
    "road camera": Lens.of(Camera(1344, 760, 1141.5)),
    "wide camera": Lens.of(Camera(1344, 760, 425.25)),
}
_HEIGHT_M = 1.22
_LENGTH_M = 400.0
_FROM_M, _STEP_M = 50.0, 1.0


def main(arguments: list[str] | None = None) -> int:
    """Print the milliseconds per picture for each lens; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulator.world.painting.picture_speed",
        description=__doc__.split(":")[0],
    )
    parser.add_argument(
        "--worlds", type=int, default=20, help="number of worlds, with seeds from 0"
    )
    parser.add_argument("--frames", type=int, default=20, help="pictures per world and lens")
    options = parser.parse_args(arguments)
    worlds = [random_world(seed, _LENGTH_M) for seed in range(max(options.worlds, 1))]
    for name, lens in _LENSES.items():
        spent = sorted(_milliseconds(world, lens, max(options.frames, 1)) for world in worlds)
        middle = spent[len(spent) // 2]
        print(
            f"{name} {lens.width}x{lens.height}: {middle:.1f} ms per picture "
            f"({spent[0]:.1f} to {spent[-1]:.1f} by world)"
        )
    return 0


def _milliseconds(world: World, lens: Lens, frames: int) -> float:
    """Return the processor time per picture along a world, without the first two pictures."""
    painter = Painter(world, Mount(lens, (0.0, 0.0, 0.0), _HEIGHT_M))
    offset = world.lanes.centre_m(0)
    spent = 0
    traffic = None
    for number in range(frames + 2):
        s = _FROM_M + _STEP_M * number
        x, y, _ = world.road.places(s, offset)
        heading = world.road.at(s).heading_rad
        body = body_at(world.road, float(x), float(y), heading, 20.0, near_s_m=s)
        traffic = traffic or Traffic(world, world.seed, body, density=0.5)
        begin = time.process_time_ns()
        painter.paint(body, traffic.vehicles, number)
        spent += time.process_time_ns() - begin if number >= 2 else 0
    return spent / frames / 1e6


if __name__ == "__main__":
    sys.exit(main())
