"""Both warps against numpy, bit by bit: every camera, padded or not, and geometries that lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cereal.frame_format import FrameFormat, nv12_format, nv12_unpadded
from runtime.executor import Program
from scheduler.driving.warp import luma_image, model_image
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.driving import reference_warp
from tests.scheduler.support.programs import load, make_program

pytestmark = pytest.mark.opencl
Array = NDArray[Any]
MODES = ("bilinear", "nearest")
CAMERAS = ((1928, 1208), (1344, 760), (2688, 1520), (1164, 874), (816, 612), (960, 540), (2, 2))
CAPACITY = nv12_format(2688, 1520).payload_bytes
# Sides of a format may be odd where a producer has such a picture: the last chroma is left out.
ODD = FrameFormat(817, 613, 832, 832 * 613, 832 * 613 + 832 * 307)
LAYOUTS = {
    **{f"{w}x{h} padded": nv12_format(w, h) for w, h in CAMERAS},
    **{f"{w}x{h}": nv12_unpadded(w, h) for w, h in CAMERAS},
    "817x613": ODD,
}


def view(focal: float, width: int, height: int, model: float, cy: float) -> Array:
    """Return model pixel -> camera pixel for a camera that looks a little down and to the left."""
    camera = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    eye = np.linalg.inv(np.array([[model, 0, 256], [0, model, cy], [0, 0, 1]]))
    turn = np.array([[1, 0.003, -0.02], [-0.003, 1, 0.04], [0.02, -0.04, 1]])
    return np.asarray(camera @ turn @ eye, np.float32)


def transforms_for(form: FrameFormat) -> dict[str, Array]:
    road = view(1.37 * form.width, form.width, form.height, 910, 47.6)
    wide = view(0.29 * form.width, form.width, form.height, 455, 151.8)
    return {"road": road, "wide": wide, "identity": np.eye(3, dtype=np.float32)}


def matrix(*rows: float) -> Array:
    return np.array(rows, np.float32).reshape(3, 3)


INF, NAN = np.inf, np.nan
EXTREME = {
    "zero": np.zeros((3, 3), np.float32),
    "half a pixel": matrix(1, 0, 0.5, 0, 1, 0.5, 0, 0, 1),
    "horizon in the picture": matrix(1, 0, 0, 0, 1, 0, 0, -0.01, 1),
    "w is 0 in a column": matrix(1, 0, 3, 0, 1, 4, 1, 0, -200),
    "behind": matrix(1, 0, 0, 0, 1, 0, 0, 0, -1),
    "mirrored": matrix(-1, 0, 511, 0, -1, 255, 0, 0, 1),
    "far": matrix(1e9, 0, 0, 0, -1e9, 0, 0, 0, 1),
    "overflow": matrix(3e38, 3e38, 3e38, -3e38, 3e38, 0, 0, 0, 1e-30),
    "underflow": matrix(1e-30, 0, 0, 0, 1e-30, 0, 0, 0, 1e30),
    "inf": matrix(INF, 0, 0, 0, -INF, 0, 0, 0, 1),
    "inf below": matrix(1, 0, 0, 0, 1, 0, 0, 0, INF),
    "inf over inf": matrix(1, 0, INF, 0, 1, -INF, 0, 0, INF),
    "nan": np.full((3, 3), NAN, np.float32),
    "nan in x": matrix(NAN, 0, 0, 0, 1, 0, 0, 0, 1),
    "nan below": matrix(1, 0, 0, 0, 1, 0, NAN, 0, 1),
    "between pixels": matrix(1, 0, 2**21 - 0.5, 0, 1, -(2**21), 0, 0, 1),
}


def inputs(capacity: int) -> dict[str, Tensor]:
    return {
        "frame": Tensor.input("frame", (capacity,), dt.uint8, partial=True),
        "transform": Tensor.input("transform", (3, 3)),
        "geometry": Tensor.input("geometry", (4,), dt.int32),
    }


def loaded(capacity: int) -> Program:
    """Return a program with both views in both modes."""
    at = inputs(capacity)
    views = {f"image {mode}": model_image(**at, mode=mode) for mode in MODES}
    views |= {f"luma {mode}": luma_image(**at, mode=mode) for mode in MODES}
    return load(views)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with loaded(CAPACITY) as made:
        yield made


def picture(form: FrameFormat, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, form.payload_bytes).astype(np.uint8)


def check(
    program: Program, held: Array, given: Array, m: Array, geometry: Array, what: str
) -> None:
    """Compare all views with the reference.

    Args:
        program: as `loaded`.
        held: what the frame buffer holds after `given` was written to its beginning.
        given, m, geometry: inputs.
        what: names the case.
    """
    found = program.run({"frame": given, "transform": m, "geometry": geometry})
    for mode in MODES:
        expected = reference_warp.model_image(held, m, geometry, mode)
        np.testing.assert_array_equal(found[f"image {mode}"], expected, f"{what}, {mode}")
        expected = reference_warp.luma_image(held, m, geometry, mode)
        np.testing.assert_array_equal(found[f"luma {mode}"], expected, f"{what}, luma {mode}")


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_camera_in_one_program(program: Program, name: str) -> None:
    form = LAYOUTS[name]
    frame = picture(form)
    for what, m in transforms_for(form).items():
        # The reference has nothing but the frame: what other frames left behind it does not count.
        check(program, frame, frame, m, reference_warp.geometry_of(form), f"{name}, {what}")


@pytest.mark.parametrize("what", EXTREME)
def test_extreme_transforms(program: Program, what: str) -> None:
    form = nv12_unpadded(816, 612)
    frame = picture(form)
    check(program, frame, frame, EXTREME[what], reference_warp.geometry_of(form), what)


def test_padding_never_shows(program: Program) -> None:
    """The same pixels in different layouts are the same view."""
    wanted: dict[str, Array] = {}
    for form in (
        nv12_unpadded(960, 540),
        nv12_format(960, 540),
        FrameFormat(960, 540, 1000, 600_000, 0),
    ):
        frame = np.full(form.payload_bytes, 77, np.uint8)
        pixels = np.random.default_rng(5).integers(0, 256, (810, 960)).astype(np.uint8)
        for row in range(540):
            frame[row * form.stride :][:960] = pixels[row]
        for row in range(270):
            frame[form.uv_offset + row * form.stride :][:960] = pixels[540 + row]
        found = program.run(
            {
                "frame": frame,
                "transform": view(800, 960, 540, 910, 47.6),
                "geometry": reference_warp.geometry_of(form),
            }
        )
        for name, image in found.items():
            np.testing.assert_array_equal(wanted.setdefault(name, image.copy()), image, name)


# --- by hand ------------------------------------------------------------------------------------


def test_nearest_rounds_half_to_even(program: Program) -> None:
    """Source columns 0.5, 1.5, 2.5, 3.5 are 0, 2, 2, 4; chroma moves by 0.25 and rounds to 0."""
    form = nv12_unpadded(512, 256)
    frame = np.zeros(form.size, np.uint8)
    frame[: 512 * 256] = np.tile(np.arange(512) % 256, 256)
    frame[512 * 256 :] = np.tile(np.arange(512) // 2 % 256, 128)
    given = {
        "frame": frame,
        "transform": matrix(1, 0, 0.5, 0, 1, 0, 0, 0, 1),
        "geometry": reference_warp.geometry_of(form),
    }
    image = program.run(given)["image nearest"]
    assert image[0, 0, :3].tolist() == [0, 2, 4]  # even columns: 0.5, 2.5, 4.5
    assert image[2, 0, :3].tolist() == [2, 4, 6]  # odd columns: 1.5, 3.5, 5.5
    assert image[4, 0].tolist() == image[5, 0].tolist() == list(range(256))


def test_the_rules_differ_by_half_a_chroma_pixel(program: Program) -> None:
    """Every second pixel of an edge in chroma: by centres it lies between samples, else on one."""
    form = nv12_unpadded(1024, 512)
    frame = np.zeros(form.size, np.uint8)
    chroma = frame[form.uv_offset :].reshape(256, 512, 2)
    chroma[:, 256:] = 200  # from sample column 256 on
    given = {
        "frame": frame,
        "transform": matrix(2, 0, 0, 0, 2, 0, 0, 0, 1),
        "geometry": reference_warp.geometry_of(form),
    }
    found = program.run(given)
    # Nearest: column 128 reads sample 256. Centres: 128 is (2 * (2 * 128 + 0.5) - 0.5) / 2 = 256.25
    # and 127 is 254.25: a quarter of the next sample, whose value is the same.
    assert found["image nearest"][4, 0, 126:130].tolist() == [0, 0, 200, 200]
    assert found["image bilinear"][4, 0, 126:130].tolist() == [0, 0, 200, 200]
    given["transform"] = matrix(2, 0, 1, 0, 2, 0, 0, 0, 1)
    found = program.run(given)
    # A luma pixel further: sample 2 * 127 + 0.5 = 254.5 -> 254 here, 254.75 there; at 128 on 256.5.
    assert found["image nearest"][4, 0, 126:130].tolist() == [0, 0, 200, 200]
    given["transform"] = matrix(2, 0, 3, 0, 2, 0, 0, 0, 1)
    found = program.run(given)
    # 2 * 127 + 1.5 = 255.5 rounds to 256; by centres it is 255.75: three quarters of 200.
    assert found["image nearest"][4, 0, 126:130].tolist() == [0, 200, 200, 200]
    assert found["image bilinear"][4, 0, 126:130].tolist() == [0, 150, 200, 200]


@pytest.mark.parametrize("name", ["zero", "nan"])
def test_without_a_transform_the_first_pixel_repeats(program: Program, name: str) -> None:
    form = nv12_format(1344, 760)
    frame = picture(form)
    given = {
        "frame": frame,
        "transform": EXTREME[name],
        "geometry": reference_warp.geometry_of(form),
    }
    found = program.run(given)
    for mode in MODES:
        image = found[f"image {mode}"]
        assert (image[:4] == frame[0]).all()
        assert (image[4] == frame[form.uv_offset]).all()
        assert (image[5] == frame[form.uv_offset + 1]).all()
        assert (found[f"luma {mode}"] == frame[0]).all()


# --- geometries that lie ------------------------------------------------------------------------

SMALL = 4096  # bytes of a frame buffer

int32 = st.integers(-(2**31), 2**31 - 1)
sides = st.one_of(int32, st.integers(-2, 70), st.sampled_from([2**31 - 1, -(2**31), 16384, 0]))


@pytest.fixture(scope="module")
def small_program() -> Iterator[Program]:
    with loaded(SMALL) as made:
        yield made


@settings(max_examples=25)
@given(
    st.tuples(sides, sides, sides, sides), st.sampled_from(sorted(EXTREME)), st.integers(1, SMALL)
)
def test_no_geometry_reads_outside_of_the_buffer(
    small_program: Program, numbers: tuple[int, ...], name: str, length: int
) -> None:
    """Each sample is the byte that the reference picks within the buffer."""
    held = np.arange(SMALL, dtype=np.uint32).astype(np.uint8) ^ (np.arange(SMALL) >> 8).astype(
        np.uint8
    )
    small_program.run(
        {"frame": held, "transform": EXTREME["zero"], "geometry": np.zeros(4, np.int32)}
    )
    geometry = np.array(numbers, np.int32)
    check(small_program, held, held[:length], EXTREME[name], geometry, f"{numbers}, {name}")


@pytest.mark.parametrize("mode", MODES)
def test_every_address_of_the_frame_is_held_to_its_buffer(mode: str) -> None:
    """In the text of the kernels, an index into the frame is max(0, .), then min(last byte, .)."""
    at = inputs(SMALL)
    views = {"image": model_image(**at, mode=mode), "luma": luma_image(**at, mode=mode)}
    seen = 0
    for kernel in make_program(views).source.split("__kernel ")[1:]:
        # A name means something else in each branch of a kernel: the nearest one before counts.
        frames = re.findall(r"const __global uchar\* (in\d+)[,)]", kernel)
        for frame in frames:
            for read in re.finditer(rf"\b{frame} \+ \(([^()]*)\)", kernel):
                index = read[1].partition(".")[0]
                clamped = _definition(kernel[: read.start()], index)
                last = re.fullmatch(rf"\(\(?(?:\(int\d*\))?\({SMALL - 1}\) < (v\d+)\) .*", clamped)
                assert last, f"{read[0]}: {index} = {clamped}"
                assert "< (int16)(0)) ? (int16)(0) :" in _definition(
                    kernel[: read.start()], last[1]
                )
                seen += 1
    assert seen >= 16 * (4 if mode == "bilinear" else 1)


def _definition(text: str, name: str) -> str:
    """Return the last expression that a text gives to a name."""
    return str(re.findall(rf"const \w+ {name} = (.*);", text)[-1])
