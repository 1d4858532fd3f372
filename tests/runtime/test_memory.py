"""The device's memory: inputs and outputs in the host's, inputs given in part, images."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from runtime.errors import ArtifactError, InputError, RuntimeFault
from runtime.format.artifact import from_memory
from runtime.format.parts import ImageSpec
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program
from runtime.run.memory import check_images
from scheduler.context import DEFAULT_CONTEXT
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.digest import graph_digest
from scheduler.ir.interp import evaluate
from scheduler.schedule_cache import EntryGraph, ScheduleCache
from scheduler.tensor.tensor import Tensor
from tests.runtime import tiny

pytestmark = pytest.mark.opencl
BASE = np.array([1, 2, 3, 4], np.float32)
Array = np.ndarray[Any, Any]
# Of a device whose memory the host cannot touch, and that does not replay.
APART = {"platform": "another"}

# --- views: the same results as by commands, and whose memory is whose ----------------------------


def load(**info: Any) -> Program:
    """Return the tiny program with a second entry that has the outputs of the first."""
    raw = tiny.megakernel_manifest()
    raw["entries"]["again"] = raw["entries"]["run"]
    return tiny.on_cpu(raw, **info)


@pytest.fixture
def program() -> Iterator[Program]:
    with load() as loaded:
        yield loaded


def test_results_do_not_depend_on_views_and_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for replay, views in product("01", (False, True)):
        monkeypatch.setenv("RUNTIME_REPLAY", replay)
        with load(**({} if views else APART)) as program:
            slots = program._entries["run"]
            found_views = [s.view for s in slots.inputs] + [s.view for s in slots.outputs]
            assert all((view is not None) is views for view in found_views)
            assert (len(slots.steps) == 1) is (replay == "1" and views)
            runs = []
            for turn in (1.0, 2.5, -3.0):
                outputs = program.run(tiny.inputs(turn), "again" if turn < 0 else None)
                runs += [outputs["y"].tobytes(), outputs["count"].tobytes()]
            found.append((runs, program.state("queue").tobytes()))
    assert all(one == found[0] for one in found[1:])


@pytest.mark.parametrize("info", [{}, APART], ids=["views", "commands"])
def test_padding_behind_arrays_changes_nothing(info: dict[str, Any]) -> None:
    plain, padded = tiny.megakernel_manifest(), tiny.megakernel_manifest()
    for buffer in padded["buffers"]:
        if buffer["kind"] in ("input", "output", "state"):
            buffer["size"] += 12
    found = []
    for raw in (plain, padded):
        with tiny.on_cpu(raw, **info) as program:
            inputs: dict[str, Array] = {"x": BASE, "frame": np.arange(100, dtype=np.uint8)}
            runs = [{k: v.tolist() for k, v in program.run(inputs).items()} for _ in range(3)]
            found.append((runs, program.state("queue").tolist()))
    assert found[0] == found[1]
    assert found[0][0][0]["y"] == [12.0, 24.0, 36.0, 48.0]


def test_inputs_may_be_reused_after_a_run(program: Program) -> None:
    inputs = tiny.inputs()
    y = program.run(inputs)["y"]
    expected = y.copy()
    inputs["x"][:] = np.nan
    inputs["frame"][:] = 0
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(program.state("queue")[2], BASE)
    # What is in the device's memory is the copy: the next run sees what it is given.
    np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 4 * BASE + tiny.WEIGHT)


def test_inputs_are_left_as_they_are_and_may_be_read_only(program: Program) -> None:
    inputs = tiny.inputs()
    for array in inputs.values():
        array.flags.writeable = False
    program.run(inputs)
    np.testing.assert_array_equal(inputs["x"], BASE)


def test_outputs_stay_until_the_next_run_of_their_entry(program: Program) -> None:
    outputs = program.run(tiny.inputs())
    y = outputs["y"]
    expected = {name: array.copy() for name, array in outputs.items()}
    program.run({"x": 7 * BASE}, "prepare")
    program.reset()
    other = program.run(tiny.inputs(5), "again")  # the same buffers of the device
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)
    assert not np.array_equal(other["y"], outputs["y"])
    assert program.run(tiny.inputs(3)) is outputs  # overwritten, as its docstring says
    assert outputs["y"] is y
    assert not np.array_equal(y, expected["y"])


def test_outputs_are_no_views_of_the_devices_memory() -> None:
    with load() as program:
        outputs = program.run(tiny.inputs())
        host = program._memory._host
        assert host is not None
        assert not any(np.shares_memory(array, host) for array in outputs.values())
        outputs["y"][:] = np.nan  # a caller may write to them
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 4 * BASE + tiny.WEIGHT)
    np.testing.assert_array_equal(outputs["y"], 4 * BASE + tiny.WEIGHT)  # also after `close`


def test_an_output_may_be_the_next_input(program: Program) -> None:
    first = program.run(tiny.inputs())["y"]
    copied = {**tiny.inputs(), "x": first.copy()}
    expected = 2 * (BASE + copied["x"]) + tiny.WEIGHT
    np.testing.assert_array_equal(program.run({**copied, "x": first})["y"], expected)


# --- inputs of which a run gives the first bytes only ---------------------------------------------


@pytest.fixture(params=[{}, APART], ids=["views", "commands"])
def partial(request: pytest.FixtureRequest) -> Iterator[Program]:
    """The tiny program, whose frame of 100 bytes is partial."""
    changes = {f"buffers/{tiny.FRAME}/partial": True}
    with tiny.on_cpu(tiny.altered(tiny.megakernel_manifest(), changes), **request.param) as loaded:
        yield loaded


def counted(partial: Program, frame: Array) -> int:
    """Return the sum of the first 50 bytes that the device holds after a run with this frame."""
    return int(partial.run({**tiny.inputs(), "frame": frame})["count"][0])


def test_only_the_bytes_given_are_copied(partial: Program) -> None:
    ones = np.ones(100, np.uint8)
    assert counted(partial, ones[:7]) == 7  # zeros behind them, from loading
    assert counted(partial, ones) == 50
    assert counted(partial, 3 * ones[:10]) == 30 + 40
    assert counted(partial, 5 * ones[:1]) == 5 + 27 + 40
    partial.reset()
    assert counted(partial, ones[:10]) == 10 + 40  # no state: a reset leaves it


def test_the_neighbours_of_a_partial_input_keep_their_values(partial: Program) -> None:
    for length, value in product((1, 33, 100), (0, 255)):
        frame = np.full(length, value, np.uint8)
        partial.reset()
        y = partial.run({**tiny.inputs(2.0), "frame": frame})["y"]
        np.testing.assert_array_equal(y, 4 * np.array([1, 2, 3, 4]) + tiny.WEIGHT)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (np.zeros(0, np.uint8), r"expected uint8\[1 to 100\], found uint8\[0\]"),
        (np.zeros(101, np.uint8), r"expected uint8\[1 to 100\], found uint8\[101\]"),
        (np.zeros((1, 50), np.uint8), r"expected uint8\[1 to 100\], found uint8\[1, 50\]"),
        (np.zeros((), np.uint8), r"expected uint8\[1 to 100\], found uint8\[\]"),
        (np.zeros(50, np.int8), r"expected uint8\[1 to 100\], found int8\[50\]"),
        (np.zeros(100, np.uint8)[::2], "C-contiguous; use numpy.ascontiguousarray"),
    ],
)
def test_what_is_no_part_is_refused(partial: Program, frame: Array, message: str) -> None:
    with pytest.raises(InputError, match=f"entry 'run', input 'frame': .*{message}"):
        counted(partial, frame)


def test_other_inputs_are_whole(partial: Program) -> None:
    assert [spec.partial for spec in partial.inputs] == [False, True]
    assert partial.inputs[1].shape == (100,)
    with pytest.raises(InputError, match=r"input 'x': expected float32\[4\], found float32\[3\]"):
        partial.run({**tiny.inputs(), "x": np.zeros(3, np.float32)})


def row(*, partial: bool) -> Tensor:
    return Tensor.input("row", (64,), dt.uint8, partial=partial)


def test_a_graph_marks_its_inputs() -> None:
    part, whole = row(partial=True), Tensor.input("whole", (64,), dt.uint8)
    total = (part.cast(dt.int32) + whole.cast(dt.int32)).sum()
    graph = EntryGraph({"total": total.node}, inputs=[part.node, whole.node])
    made = ScheduleCache().emitted({"run": graph}, DEFAULT_CONTEXT, name="parts", kind="plain")
    marks = {b["name"]: b.get("partial") for b in made.manifest["buffers"] if b["kind"] == "input"}
    assert marks == {"row": True, "whole": None}
    device = choose_device(None)
    artifact = from_memory(made.manifest, made.data)
    with Program(artifact, device, shared_cache(device)) as program:
        given = {"row": np.full(9, 2, np.uint8), "whole": np.ones(64, np.uint8)}
        assert program.run(given)["total"] == 9 * 2 + 64
    (expected,) = evaluate(
        [total.node], {t.node.arg: given[t.node.arg.name] for t in (part, whole)}
    )
    assert expected == 9 * 2 + 64


def test_partial_inputs_are_part_of_the_key_of_a_schedule() -> None:
    keys = {graph_digest({"y": (row(partial=p) + 1).node}) for p in (True, False, True)}
    assert len(keys) == 2


@pytest.mark.parametrize(("shape", "dtype"), [((4, 4), dt.uint8), ((16,), dt.int8), ((), dt.uint8)])
def test_only_rows_of_bytes_can_be_partial(shape: tuple[int, ...], dtype: dt.DType) -> None:
    with pytest.raises(ModelError, match='input "row": expected uint8 with one axis'):
        Tensor.input("row", shape, dtype, partial=True)


# --- images: filled from the file, read outside, poisoned, refused --------------------------------

SAMPLER = "CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST"
IMAGES = f"""
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


def of_images(dtype: str) -> dict[str, Any]:
    """y = twice the weight, from one texel to the left: the first four are zero."""
    raw = tiny.manifest()
    raw["buffers"] = [
        tiny.buffer("y", "output", "float32", 8),
        {**tiny.buffer("w", "weight", dtype, 8), "image": [2, 1]},
        {**tiny.buffer("t", "image", dtype, 8), "image": [2, 1]},
    ]
    raw["programs"] = [tiny.program(IMAGES)]
    raw["kernels"] = [tiny.kernel("twice", 2, 2, 1), tiny.kernel("from_left", 2, 0, 2)]
    raw["entries"] = {"run": {"inputs": [], "outputs": [0], "launches": [0, 1]}}
    raw["arena_size"] = 0
    return raw


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_images_hold_the_file_and_zeros_outside(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")
    device = choose_device(None)
    raw, data = of_images(dtype), VALUES.astype(dtype).tobytes()
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


def test_a_kernel_that_would_end_the_process_of_its_driver_is_refused() -> None:
    many = {"kernels/0/args": [0] * 17}
    for name, platform in (("FD630", "another"), ("llvmpipe (LLVM 19, 256 bits)", "rusticl")):
        assert (
            replace(choose_device("cpu").info, name=name, platform=platform).max_buffer_args is None
        )
    with pytest.raises(ArtifactError, match=r"has 17 buffers, the driver of FD630 takes 16 and"):
        tiny.on_cpu(tiny.altered(tiny.manifest(), many), name="FD630", platform="rusticl")
