"""Both warps against numpy, bit by bit: every camera, padded or not, and geometries that lie."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cereal.frame_ring import FrameFormat, nv12_format, nv12_unpadded
from runtime.run.executor import Program
from scheduler.driving.warp import luma_image, model_image
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.reference_loop import warps
from tests.scheduler.support.programs import load, make_program
from tests.support.selection import quick_cases

pytestmark = pytest.mark.opencl
Array = NDArray[Any]
MODES = ("bilinear", "nearest")
CAMERAS = ((1928, 1208), (1344, 760), (2688, 1520), (1164, 874), (816, 612), (960, 540), (2, 2))
CAPACITY = nv12_format(2688, 1520).payload_bytes
LAYOUTS = {
    **{f"{w}x{h} padded": nv12_format(w, h) for w, h in CAMERAS},
    **{f"{w}x{h}": nv12_unpadded(w, h) for w, h in CAMERAS},
    # Sides may be odd where a producer has such a picture: the last chroma is left out.
    "817x613": FrameFormat(817, 613, 832, 832 * 613, 832 * 613 + 832 * 307),
    "960x540, rows apart": FrameFormat(960, 540, 1000, 600_000, 600_000 + 1000 * 270),
}


def view(focal: float, width: int, height: int, model: float, cy: float) -> Array:
    """Return model pixel -> camera pixel for a camera that looks a little down and to the left."""
    camera = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    eye = np.linalg.inv(np.array([[model, 0, 256], [0, model, cy], [0, 0, 1]]))
    turn = np.array([[1, 0.003, -0.02], [-0.003, 1, 0.04], [0.02, -0.04, 1]])
    return np.asarray(camera @ turn @ eye, np.float32)


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


def views_of(capacity: int, *modes: str) -> dict[str, Tensor]:
    at = {
        "frame": Tensor.input("frame", (capacity,), dt.uint8, partial=True),
        "transform": Tensor.input("transform", (3, 3)),
        "geometry": Tensor.input("geometry", (4,), dt.int32),
    }
    images = {f"image {mode}": model_image(**at, mode=mode) for mode in modes}
    return images | {f"luma {mode}": luma_image(**at, mode=mode) for mode in modes}


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with load(views_of(CAPACITY, *MODES)) as made:
        yield made


def picture(form: FrameFormat, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, form.payload_bytes).astype(np.uint8)


def run(program: Program, frame: Array, m: Array, form: FrameFormat) -> dict[str, Array]:
    geometry = np.array([form.width, form.height, form.stride, form.uv_offset], np.int32)
    return program.run({"frame": frame, "transform": m, "geometry": geometry})


def check(
    program: Program, held: Array, m: Array, form: FrameFormat, what: str, given: int | None = None
) -> None:
    """Compare all views of a frame, of which `given` bytes are given, with the reference.

    The reference sees what the buffer of the frame holds: those bytes and what was there before.
    """
    found = run(program, held[:given], m, form)
    seen = warps.Picture(held, form.width, form.height, form.stride, form.uv_offset, what)
    for mode in MODES:
        expected = warps.view(seen, m, mode)
        np.testing.assert_array_equal(found[f"image {mode}"], expected, f"{what}, {mode}")
        expected = warps.driver_view(seen, m, mode)
        np.testing.assert_array_equal(found[f"luma {mode}"], expected, f"{what}, luma {mode}")


QUICK = ("1928x1208 padded", "2x2", "817x613", "960x540, rows apart")


@pytest.mark.parametrize("name", quick_cases(LAYOUTS, *QUICK))
def test_every_camera_in_one_program(program: Program, name: str) -> None:
    form = LAYOUTS[name]
    frame, size = picture(form), (form.width, form.height)
    # The reference has nothing but the frame: what other frames left behind it does not count.
    check(program, frame, view(1.37 * form.width, *size, 910, 47.6), form, f"{name}, road")
    check(program, frame, view(0.29 * form.width, *size, 455, 151.8), form, f"{name}, wide")
    check(program, frame, np.eye(3, dtype=np.float32), form, f"{name}, identity")


@pytest.mark.parametrize("what", quick_cases(EXTREME, "w is 0 in a column", "nan below", "far"))
def test_extreme_transforms(program: Program, what: str) -> None:
    form = nv12_unpadded(816, 612)
    check(program, picture(form), EXTREME[what], form, what)


def test_nearest_rounds_half_to_even(program: Program) -> None:
    """Source columns 0.5, 1.5, 2.5, 3.5 are 0, 2, 2, 4; chroma moves by 0.25 and rounds to 0."""
    form = nv12_unpadded(512, 256)
    frame = np.zeros(form.size, np.uint8)
    frame[: 512 * 256] = np.tile(np.arange(512) % 256, 256)
    frame[512 * 256 :] = np.tile(np.arange(512) // 2 % 256, 128)
    image = run(program, frame, matrix(1, 0, 0.5, 0, 1, 0, 0, 0, 1), form)["image nearest"]
    assert image[0, 0, :3].tolist() == [0, 2, 4]  # even columns: 0.5, 2.5, 4.5
    assert image[2, 0, :3].tolist() == [2, 4, 6]  # odd columns: 1.5, 3.5, 5.5
    assert image[4, 0].tolist() == image[5, 0].tolist() == list(range(256))


@pytest.mark.parametrize(
    ("x", "nearest", "bilinear"),
    [
        # Nearest: column 128 reads sample 256. Centres: 128 is (2 * (2 * 128 + 0.5) - 0.5) / 2 =
        # 256.25 and 127 is 254.25: a quarter of the next sample, whose value is the same.
        (0, [0, 0, 200, 200], [0, 0, 200, 200]),
        # A luma pixel further: sample 2 * 127 + 0.5 = 254.5 -> 254 here, 254.75 there.
        (1, [0, 0, 200, 200], [0, 0, 200, 200]),
        # 2 * 127 + 1.5 = 255.5 rounds to 256; by centres it is 255.75: three quarters of 200.
        (3, [0, 200, 200, 200], [0, 150, 200, 200]),
    ],
)
def test_the_rules_differ_by_half_a_chroma_pixel(
    program: Program, x: float, nearest: list[int], bilinear: list[int]
) -> None:
    """Every second pixel of an edge in chroma: by centres it lies between samples, else on one."""
    form = nv12_unpadded(1024, 512)
    frame = np.zeros(form.size, np.uint8)
    frame[form.uv_offset :].reshape(256, 512, 2)[:, 256:] = 200  # from sample column 256 on
    found = run(program, frame, matrix(2, 0, x, 0, 2, 0, 0, 0, 1), form)
    assert found["image nearest"][4, 0, 126:130].tolist() == nearest
    assert found["image bilinear"][4, 0, 126:130].tolist() == bilinear


@pytest.mark.parametrize("name", ["zero", "nan"])
def test_without_a_transform_the_first_pixel_repeats(program: Program, name: str) -> None:
    form = nv12_format(1344, 760)
    frame = picture(form)
    found = run(program, frame, EXTREME[name], form)
    for mode in MODES:
        image = found[f"image {mode}"]
        assert (image[:4] == frame[0]).all()
        assert (image[4] == frame[form.uv_offset]).all()
        assert (image[5] == frame[form.uv_offset + 1]).all()
        assert (found[f"luma {mode}"] == frame[0]).all()


SMALL = 4096  # bytes of a frame buffer
HELD = np.arange(SMALL, dtype=np.uint32).astype(np.uint8) ^ (np.arange(SMALL) >> 8).astype(np.uint8)

int32 = st.integers(-(2**31), 2**31 - 1)
sides = st.one_of(int32, st.integers(-2, 70), st.sampled_from([2**31 - 1, -(2**31), 16384, 0]))


@pytest.fixture(scope="module")
def small_program() -> Iterator[Program]:
    with load(views_of(SMALL, *MODES)) as made:
        yield made


def check_lie(program: Program, numbers: tuple[int, int, int, int], name: str, length: int) -> None:
    """Each sample is the byte that the reference picks within the buffer."""
    run(program, HELD, EXTREME["zero"], FrameFormat(0, 0, 0, 0, 0))
    check(program, HELD, EXTREME[name], FrameFormat(*numbers, 0), f"{numbers}, {name}", length)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.tuples(sides, sides, sides, sides), st.sampled_from(sorted(EXTREME)), st.integers(1, SMALL)
)
def test_no_geometry_reads_outside_of_the_buffer(
    small_program: Program, numbers: tuple[int, int, int, int], name: str, length: int
) -> None:
    check_lie(small_program, numbers, name, length)


def test_some_geometry_that_lies_stays_within_the_buffer(small_program: Program) -> None:
    check_lie(small_program, (2**31 - 1, 64, 2**31 - 1, -(2**31)), "half a pixel", 99)


@pytest.mark.parametrize("mode", MODES)
def test_every_address_of_the_frame_is_held_to_its_buffer(mode: str) -> None:
    """In the text of the kernels, an index into the frame is max(0, .), then min(last byte, .)."""
    seen = 0
    for kernel in make_program(views_of(SMALL, mode)).source.split("__kernel ")[1:]:
        # A name means something else in each branch of a kernel: the nearest one before counts.
        frames = re.findall(r"const __global uchar\* (in\d+)[,)]", kernel)
        for frame in frames:
            for read in re.finditer(rf"\b{frame} \+ \(([^()]*)\)", kernel):
                before, index = kernel[: read.start()], read[1].partition(".")[0]
                clamped = _definition(before, index)
                most = rf"\(int16\)\({SMALL - 1}\)"
                last = re.fullmatch(rf"M_CHOOSE\(\({most} < (v\d+)\), {most}, \1\)", clamped)
                assert last, f"{read[0]}: {index} = {clamped}"
                assert "< (int16)(0)), (int16)(0), v" in _definition(before, last[1])
                seen += 1
    assert seen >= 16 * (4 if mode == "bilinear" else 1)


def _definition(text: str, name: str) -> str:
    """Return the last expression that a text gives to a name."""
    return str(re.findall(rf"const \w+ {name} = (.*);", text)[-1])
