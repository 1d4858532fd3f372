"""The driving program again, in numpy and onnxruntime: what the compiled one is compared with.

Written from the formulas, not from the compiler: integer image code on whole arrays, queues as
lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from runtime.driving_interface import HistoryRule, Interface

Array = NDArray[Any]
f32 = np.float32
VIEW_NAMES = {"road": ("img", "input_imgs"), "wide": ("big_img", "big_input_imgs")}
TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
}


def warp_plane(plane: Array, m: Array, width: int, height: int) -> Array:
    """Sample a (h, w) uint8 plane at m * (x, y, 1): bilinear, 1/32 px, 15-bit weights, clamped."""
    x = np.arange(width, dtype=f32)[None, :]
    y = np.arange(height, dtype=f32)[:, None]
    x0, y0, w = ((m[i, 0] * x + m[i, 1] * y) + m[i, 2] for i in range(3))
    with np.errstate(divide="ignore"):
        scale = np.where(w == 0, f32(0), f32(32) / w)
    sx = np.clip(np.rint(x0 * scale), -(2**21), 2**21).astype(np.int64)
    sy = np.clip(np.rint(y0 * scale), -(2**21), 2**21).astype(np.int64)
    ix, iy = (np.clip(s >> 5, -32768, 32767) for s in (sx, sy))
    ax, ay = (sx & 31) / 32.0, (sy & 31) / 32.0
    rows, columns = plane.shape
    total: Array = np.full((height, width), 1 << 14, np.int64)
    for dy, wy in ((0, 1 - ay), (1, ay)):
        for dx, wx in ((0, 1 - ax), (1, ax)):
            weight = np.minimum(np.rint(wx * wy * 32768), 32767).astype(np.int64)
            tap = plane[np.clip(iy + dy, 0, rows - 1), np.clip(ix + dx, 0, columns - 1)]
            total += weight * tap
    return np.asarray(np.clip(total >> 15, 0, 255), np.uint8)


def chroma_transform(m: Array) -> Array:
    """Transform between half-resolution images with pixel centres kept, in float32 steps."""
    m = m.astype(f32)
    wide = np.stack(
        [m[:, 0] * f32(2), m[:, 1] * f32(2), m[:, 0] * f32(0.5) + m[:, 1] * f32(0.5) + m[:, 2]], 1
    )
    return np.stack(
        [
            wide[0] * f32(0.5) - wide[2] * f32(0.25),
            wide[1] * f32(0.5) - wide[2] * f32(0.25),
            wide[2],
        ]
    )


def model_image(
    frame: Array, m: Array, width: int, height: int, stride: int, uv_offset: int
) -> Array:
    """(6, 128, 256) uint8 of an NV12 frame."""
    luma = frame[: stride * height].reshape(height, stride)[:, :width]
    chroma = frame[uv_offset : uv_offset + stride * (height // 2)].reshape(height // 2, stride)
    y = warp_plane(luma, m, 512, 256)
    half = chroma_transform(m)
    u = warp_plane(chroma[:, 0:width:2], half, 256, 128)
    v = warp_plane(chroma[:, 1:width:2], half, 256, 128)
    return np.stack([y[::2, ::2], y[1::2, ::2], y[::2, 1::2], y[1::2, 1::2], u, v])


def nearest_plane(plane: Array, m: Array, width: int, height: int) -> Array:
    """Sample a (h, w) uint8 plane at the pixel next to m * (x, y, 1); (0, 0) where that is none."""
    x = np.arange(width, dtype=f32)[None, :]
    y = np.arange(height, dtype=f32)[:, None]
    x0, y0, w = ((m[i, 0] * x + m[i, 1] * y) + m[i, 2] for i in range(3))
    with np.errstate(divide="ignore", invalid="ignore"):
        sx, sy = (np.nan_to_num(np.where(w == 0, f32(0), v / w)) for v in (x0, y0))
    rows, columns = plane.shape
    line = np.clip(np.rint(sy), 0, rows - 1).astype(np.int64)
    return np.asarray(plane[line, np.clip(np.rint(sx), 0, columns - 1).astype(np.int64)])


def nearest_image(
    frame: Array, m: Array, width: int, height: int, stride: int, uv_offset: int
) -> Array:
    """(6, 128, 256) uint8 of an NV12 frame by the rule of the nearest pixel."""
    luma = frame[: stride * height].reshape(height, stride)[:, :width]
    chroma = frame[uv_offset : uv_offset + stride * (height // 2)].reshape(height // 2, stride)
    y = nearest_plane(luma, m, 512, 256)
    half = m * np.array([[1, 1, 0.5], [1, 1, 0.5], [2, 2, 1]], f32)
    u = nearest_plane(chroma[:, 0:width:2], half, 256, 128)
    v = nearest_plane(chroma[:, 1:width:2], half, 256, 128)
    return np.stack([y[::2, ::2], y[1::2, ::2], y[::2, 1::2], y[1::2, 1::2], u, v])


class FrameLoop:
    """State and models of the reference loop.

    Args:
        interface: what goes where.
        models: ONNX files in run order.
    """

    def __init__(self, interface: Interface, models: Sequence[Path]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.interface = interface
        self.sessions = [onnxruntime.InferenceSession(str(path), options) for path in models]
        depth = interface.image.gap + 1
        image = np.zeros((6, 128, 256), np.uint8)
        self.images = {n: deque([image] * depth, maxlen=depth) for n in ("road", "wide")}
        inputs = {n: shape for part in interface.models for n, (shape, _) in part.inputs.items()}
        self.desires = _zeros(interface.desire, (8,))
        self.features = _zeros(interface.features, inputs.get("features_buffer", ())[2:])
        self.curvatures = _zeros(interface.curvature, inputs.get("prev_desired_curv", ())[2:])
        self.states = {
            value.name: np.zeros(value.shape, TYPES[value.type])
            for session in self.sessions
            for value in session.get_inputs()
            if value.name in interface.states
        }

    def push(self, images: Mapping[str, Array], desire: Array) -> None:
        """Advance the queues of images (view -> (6, 128, 256)) and desires."""
        for name, image in images.items():
            self.images[name].append(image)
        if self.desires is not None:
            self.desires.append(desire)

    def run(
        self, images: Mapping[str, Array], desire: Array, host: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the raw output vector of each model in a frame, by role."""
        rules = self.interface
        self.push(images, desire)
        given = dict(host)
        for name, queue in self.images.items():
            pair = np.concatenate([queue[0], queue[-1]])[None]
            given |= dict.fromkeys(VIEW_NAMES[name], pair)
        newest = np.stack([self.images["road"][-1], self.images["wide"][-1]])
        given |= {"warped": newest, "new_img": newest, **self.states}
        pulses = desire
        if rules.desire is not None and self.desires is not None:
            rows, step = list(self.desires), rules.desire.step
            groups = [rows[i : i + step] for i in range(0, len(rows), step)]
            pulses = np.stack([np.max(group, axis=0) for group in groups])[None]
        given |= {"desire": pulses, "desire_pulse": pulses}
        given |= {"features_buffer": _seen(rules.features, self.features)}
        given |= {"prev_desired_curv": _seen(rules.curvature, self.curvatures)}
        found: dict[str, Array] = {}
        after: dict[str, Array] = {}
        for part, session in zip(rules.models, self.sessions, strict=True):
            values = {v.name: given[v.name].astype(TYPES[v.type]) for v in session.get_inputs()}
            names = [v.name for v in session.get_outputs()]
            outputs = dict(zip(names, session.run(None, values), strict=True))
            found[part.role] = outputs.get("outputs", next(iter(outputs.values()))).astype(f32)
            after |= {name: outputs[f"next_{name}"] for name in rules.states if name in values}
            if self.features is not None and "hidden_state" in part.slices:
                hidden = found[part.role][0, slice(*part.slices["hidden_state"])]
                self.features.append(hidden.reshape(self.features[0].shape))
                if rules.features is not None and rules.features.current:
                    given["features_buffer"] = _seen(rules.features, self.features)
        if self.curvatures is not None and rules.curvature is not None:
            role, start, stop = rules.heads["desired_curvature"]
            mean = found[role][0, start : (start + stop) // 2]
            self.curvatures.append(mean * f32(rules.curvature.scale))
        self.states = after
        return found


def _zeros(rule: HistoryRule | None, row: tuple[int, ...]) -> deque[Array] | None:
    if rule is None:
        return None
    rows = rule.length * rule.step
    return deque([np.zeros(row, f32)] * rows, maxlen=rows)


def _seen(rule: HistoryRule | None, rows: deque[Array] | None) -> Array:
    """Samples (1, length, *row): from the oldest on, or backwards from the newest."""
    if rule is None or rows is None:
        return np.zeros(0, f32)
    last = len(rows) if rule.newest else len(rows) - rule.step + 1
    picked = [rows[i - 1] for i in range(last, 0, -rule.step)][::-1]
    return np.stack(picked)[None]
