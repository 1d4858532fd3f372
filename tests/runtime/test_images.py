"""Images of an artifact on the device: filled from the file, read outside, poisoned, refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.artifact import from_memory
from runtime.device import choose_device
from runtime.errors import ArtifactError, RuntimeFault
from runtime.executor import Program
from runtime.image_spec import ImageSpec
from runtime.images import check_images
from runtime.program_cache import shared_cache
from tests.runtime import tiny

pytestmark = pytest.mark.opencl
SAMPLER = "CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST"
SOURCE = f"""
{tiny.ONE}
__constant sampler_t near = {SAMPLER};
__kernel ONE void twice(__write_only image2d_t t, __read_only image2d_t w) {{
  const int i = get_global_id(0);
  write_imagef(t, (int2)(i, 0), 2.0f * read_imagef(w, near, (int2)(i, 0)));
}}
__kernel ONE void from_left(__global float* y, __read_only image2d_t t) {{
  const int i = get_global_id(0);
  vstore4(read_imagef(t, near, (int2)(i - 1, 0)), i, y);
}}
"""
VALUES = np.arange(1, 9, dtype=np.float16)


def manifest(dtype: str) -> dict[str, Any]:
    """y = twice the weight, from one texel to the left: the first four are zero."""
    raw = tiny.manifest()
    raw["buffers"] = [
        tiny.buffer("y", "output", "float32", 8),
        {**tiny.buffer("w", "weight", dtype, 8), "image": [2, 1]},
        {**tiny.buffer("t", "image", dtype, 8), "image": [2, 1]},
    ]
    raw["programs"] = [{"source": SOURCE, "options": "", "binary": b""}]
    raw["kernels"] = [tiny.kernel("twice", 2, 2, 1), tiny.kernel("from_left", 2, 0, 2)]
    raw["entries"] = {"run": {"inputs": [], "outputs": [0], "launches": [0, 1]}}
    raw["arena_size"] = 0
    return raw


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_images_hold_what_the_file_says_and_zeros_outside(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")
    device = choose_device(None)
    raw, data = manifest(dtype), VALUES.astype(dtype).tobytes()
    with Program(from_memory(raw, data), device, shared_cache(device)) as program:
        for _ in range(2):
            got = program.run({})["y"]
            assert np.array_equal(got, [0, 0, 0, 0, 2, 4, 6, 8])
    raw["entries"]["run"]["launches"] = [1]  # what is never written is not finite
    with (
        Program(from_memory(raw, data), device, shared_cache(device)) as program,
        pytest.raises(RuntimeFault, match="output 'y' has"),
    ):
        program.run({})


def test_images_that_a_device_does_not_take_are_named() -> None:
    device = choose_device(None)
    widest, highest = device.handle.image2d_max_width, device.handle.image2d_max_height
    check_images([("large", ImageSpec(widest, highest))], device)
    for width, height in ((widest + 1, 1), (1, highest + 1)):
        taken = rf"image 'big' has {width}x{height} texels, .* takes {widest}x{highest};"
        with pytest.raises(ArtifactError, match=taken):
            check_images([("big", ImageSpec(width, height))], device)
    blind = replace(device, info=replace(device.info, images=False))
    check_images([], blind)
    with pytest.raises(ArtifactError, match=r"it reads images, .* has none; compile for another"):
        check_images([("small", ImageSpec(1, 1))], blind)
