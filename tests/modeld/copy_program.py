"""A hand-written driving artifact that copies its inputs out, for the real runtime."""

from typing import Any

import numpy as np

from tests.modeld.fake_program import SMALL, make_interface

# The pose (columns 87..) becomes road[0], wide[0], runs so far, road_transform[0],
# wide_transform[0], desire[3]; wide_from_device_euler (99..) the road frame's width and where the
# wide one's chroma begins; the plan begins with the traffic convention.
SOURCE = """
__kernel void count_frames(__global float* frames) { frames[0] += 1.0f; }

__kernel void vision(__global float* out, const __global uchar* road, const __global uchar* wide,
                     const __global float* road_transform, const __global float* wide_transform,
                     const __global float* desire, const __global float* frames,
                     const __global int* road_geometry, const __global int* wide_geometry) {
  const size_t i = get_global_id(0);
  float value = 0.0f;
  if (i == 87) value = road[0];
  if (i == 88) value = wide[0];
  if (i == 89) value = frames[0];
  if (i == 90) value = road_transform[0];
  if (i == 91) value = wide_transform[0];
  if (i == 92) value = desire[3];
  if (i == 99) value = road_geometry[0];
  if (i == 100) value = wide_geometry[3];
  out[i] = value;
}

__kernel void policy(__global float* out, const __global float* traffic_convention) {
  const size_t i = get_global_id(0);
  out[i] = i < 2 ? traffic_convention[i] : 0.0f;
}
"""
# Name, kind, type and shape of each buffer but the frames; launches name buffers by their index.
BUFFERS: tuple[tuple[str, str, str, tuple[int, ...]], ...] = (
    ("road_geometry", "input", "int32", (4,)),
    ("wide_geometry", "input", "int32", (4,)),
    ("road_transform", "input", "float32", (3, 3)),
    ("wide_transform", "input", "float32", (3, 3)),
    ("desire", "input", "float32", (8,)),
    ("traffic_convention", "input", "float32", (1, 2)),
    ("vision_outputs", "output", "float32", (1, 1576)),
    ("policy_outputs", "output", "float32", (1, 1000)),
    ("frames", "state", "float32", (1,)),
)
ROAD, WIDE, ROAD_G, WIDE_G, ROAD_T, WIDE_T, DESIRE, TRAFFIC, VISION, POLICY, FRAMES = range(11)
PREPARE = [ROAD, WIDE, ROAD_G, WIDE_G, ROAD_T, WIDE_T, DESIRE]
LAUNCHES = (
    ("count_frames", 1, [FRAMES]),
    ("vision", 1576, [VISION, ROAD, WIDE, ROAD_T, WIDE_T, DESIRE, FRAMES, ROAD_G, WIDE_G]),
    ("policy", 1000, [POLICY, TRAFFIC]),
)


def make_manifest(capacity_bytes: int = SMALL.size) -> dict[str, Any]:
    """The manifest of an artifact whose frames have at most so many bytes."""
    frames = [(f"{name}_frame", "input", "uint8", (capacity_bytes,)) for name in ("road", "wide")]
    buffers: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": kind,
            "dtype": dtype,
            "shape": list(shape),
            "offset": 0,
            "size": int(np.prod(shape)) * np.dtype(dtype).itemsize,
        }
        for name, kind, dtype, shape in (*frames, *BUFFERS)
    ]
    for frame in buffers[:2]:
        frame["partial"] = True
    sizes = {"local": [1, 1, 1], "origin": [], "flops": 0, "bytes": 0}
    return {
        "magic": "modeld-artifact",
        "format": 1,
        "abi": 1,
        "name": "copy",
        "kind": "driving",
        "models": [],
        "metadata": {"interface": make_interface().plain()},
        "target": {"name": "cpu", "device": "", "driver": "", "options": ""},
        "buffers": buffers,
        "arena_size": 0,
        "programs": [{"source": SOURCE, "options": "", "binary": b""}],
        "kernels": [
            {"name": name, "program": 0, "args": args, "global": [extent, 1, 1], **sizes}
            for name, extent, args in LAUNCHES
        ],
        "entries": {
            "run": {
                "inputs": [*PREPARE, TRAFFIC],
                "outputs": [VISION, POLICY],
                "launches": [0, 1, 2],
            },
            "prepare": {"inputs": PREPARE, "outputs": [], "launches": [0]},
        },
        "self_test": {},
    }
