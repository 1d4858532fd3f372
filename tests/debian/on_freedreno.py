"""Runs artifacts on Mesa's device without hardware, an Adreno 630 that executes nothing.

    python -m tests.debian.on_freedreno FILE.pkl ...

It runs in the place. Memory, images, arguments and launches are the driver's own, so what it would
refuse on a car it refuses here. A line for each artifact says what was made; the self-test has to
find that the device computes something else.
"""

import sys
from collections import Counter

import runtime
from runtime.errors import SelfTestError
from runtime.opencl import probe
from runtime.opencl.binding import cl
from runtime.run.selftest import self_test
from scheduler.device.targets import target_for


def main(paths: list[str]) -> int:
    """Return 0 if all of it went well; what the driver refuses is an exception."""
    (platform,) = cl.get_platforms()
    (device,) = platform.get_devices()
    # A device that executes nothing does not pass the probe, so it is remembered as one that did.
    probe._remember(probe._key(device, "", "ran"), probe.UNKNOWN)
    row = target_for("auto")
    if row.target != "freedreno" or row.images is None or row.cores > 64:
        print(f"expected row freedreno for {device.name}, found {row}")
        return 1
    for path in paths:
        with runtime.load_program(path) as program:
            kinds = Counter(buffer.kind for buffer in program.manifest.buffers)
            launches = sum(program.stats.launches.values())
            try:
                self_test(program)
            except SelfTestError:
                made = f"{kinds['image']} images, {kinds.total()} buffers, {launches} launches"
                print(f"{path}: {made}, {program.stats.runs} runs")
            else:
                print(f"{path}: expected a self-test that fails, found one that passed")
                return 1
    print(f"{device.name}, {platform.name} {device.driver_version}: {len(paths)} artifacts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
