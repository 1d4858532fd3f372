"""`modeld bench`: which options each measurement takes, ONNX files, durations and phases."""

import argparse
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from runtime import load_program
from runtime.errors import InputError
from tests.runtime import tiny
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import Modeld
from tools.bench import bench
from tools.errors import UsageError
from tools.timing.run_parts import phased_runs
from tools.timing.run_times import measure

OPTIONS = sorted({name for mode in bench.MODES.values() for name in mode.takes.split()})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = tanh(x w + 1) of a batch of rows."""
    weights = {"w": np.eye(4, dtype=np.float32), "b": np.ones(4, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/matmul"),
        helper.make_node("Add", ["h", "b"], ["a"], name="/add"),
        helper.make_node("Tanh", ["a"], ["y"], name="/tanh"),
    ]
    path = tmp_path / "small.onnx"
    inputs, outputs = [value("x", ("batch", 4))], [value("y", ("batch", 4))]
    onnx.save(model_of(nodes, inputs, outputs, weights), path)
    return path


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(words)


def test_every_option_is_one_of_a_measurement() -> None:
    options = {name for name in vars(parsed()) if name != "path"}
    assert options == {*OPTIONS, *bench.MODES} - {""}


@pytest.mark.parametrize("mode", bench.MODES)
def test_a_measurement_takes_the_options_that_it_uses_only(mode: str) -> None:
    row, shown = bench.MODES[mode], f"--{mode}" if mode else "bench FILE"
    for option in OPTIONS:
        args = parsed(*["a.pkl"] * row.files.least)
        setattr(args, option, 0)
        if option in row.takes.split():
            bench.check_options(args, mode)
            continue
        flag = f"--{option.replace('_', '-')}"
        with pytest.raises(UsageError, match=f"^{flag}: expected with .* only, found {shown}$"):
            bench.check_options(args, mode)


@pytest.mark.parametrize("mode", bench.MODES)
def test_a_measurement_takes_as_many_files_as_it_uses(mode: str) -> None:
    files = bench.MODES[mode].files
    for count in range(5):
        args = parsed(*["a.pkl"] * count)
        if files.least <= count <= files.most:
            bench.check_options(args, mode)
        else:
            with pytest.raises(UsageError, match=f"found {count} file"):
                bench.check_options(args, mode)


@pytest.mark.opencl
def test_an_onnx_file_is_compiled_and_measured(model: Path, tmp_path: Path, modeld: Modeld) -> None:
    inputs = tmp_path / "in.npz"
    np.savez(inputs, x=np.zeros((3, 4), np.float32))
    words = ("bench", model, "--bind", "batch=3", "--inputs", inputs, "--iters", "3")
    found = modeld(0, *words, "--warmup", "0", "--json").json
    assert (found["artifact"], found["runs"], found["warm_up_runs"]) == ("small", 3, 0)
    assert found["compile_s"] > 0
    assert found["load_warm_ms"] is None
    assert {path.name for path in tmp_path.iterdir()} == {"small.onnx", "in.npz"}
    # The inputs are those of the file: they fit 3 rows only.
    modeld.refused(2, "expected float32[1, 4], found float32[3, 4]", *words[:2], *words[4:])


@pytest.mark.opencl
def test_runs_end_by_number_or_by_time(tmp_path: Path) -> None:
    with load_program(tiny.write(tmp_path / "tiny.pkl")) as program:
        inputs = tiny.inputs()
        assert measure(program, inputs, "run", 3)["runs"] == 3
        assert measure(program, inputs, "run", 3, seconds=60.0)["runs"] == 3
        # So short a time has the least number of runs, unless fewer were asked for.
        assert measure(program, inputs, "run", None, seconds=1e-9)["runs"] == 10
        assert measure(program, inputs, "run", 50, seconds=1e-9)["runs"] == 1
        found = measure(program, inputs, "run", None, seconds=0.02, warm_up=0)
        assert found["seconds"] >= 0.02
        assert found["runs_per_s"] == pytest.approx(found["runs"] / found["seconds"])


@pytest.mark.opencl
def test_runs_in_phases_compute_what_runs_compute(tmp_path: Path) -> None:
    with load_program(tiny.write(tmp_path / "tiny.pkl")) as program:
        inputs = tiny.inputs()
        whole = [program.run(inputs)["y"].copy() for _ in range(3)]
        program.reset()
        for profiling in (False, True):
            program.reset()
            (first, second) = phased_runs(program, inputs, "run", 2, profiling=profiling)
            # The state went on by two runs, so the third is that of the whole runs.
            np.testing.assert_array_equal(program.run(inputs)["y"], whole[2])
            assert [len(one.spans) for one in (first, second)] == [5 * profiling] * 2
            stamps = [first.begun_ns, first.written_ns, first.queued_ns, first.done_ns]
            stamps += [first.read_ns, second.begun_ns]
            assert stamps == sorted(stamps)
        with pytest.raises(InputError, match="expected at least 1"):
            phased_runs(program, inputs, "run", 0)
        with pytest.raises(InputError, match="it is missing"):
            phased_runs(program, {}, "run", 1)


@pytest.mark.opencl
def test_exec_dumps_the_nodes_that_kernels_have_fused(
    model: Path, tmp_path: Path, modeld: Modeld
) -> None:
    x = np.array([[1, 2, 3, 4], [-1, 0, 0.5, 2]], np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    words = ("exec", model, "--bind", "batch=2", "--inputs", tmp_path / "in.npz")
    out = tmp_path / "out.npz"
    found = modeld(0, *words, "--dump", "/add", "--dump", "h", "--outputs", out, "--json").json
    assert [row["name"] for row in found["outputs"]] == ["y", "a", "h"]
    with np.load(out) as arrays:
        np.testing.assert_array_equal(arrays["h"], x)
        np.testing.assert_array_equal(arrays["a"], x + 1)
        np.testing.assert_allclose(arrays["y"], np.tanh(x + 1), rtol=1e-6)
    modeld.refused(4, "found /ad; is it /add", *words, "--dump", "/ad")


@pytest.mark.opencl
def test_exec_with_random_inputs_is_seeded(tmp_path: Path, modeld: Modeld) -> None:
    words = ("exec", tiny.write(tmp_path / "tiny.pkl"), "--random", "--json")
    first, again, other = (
        modeld(0, *words, *more).json["outputs"] for more in ((), ("--seed", 0), ("--seed", 1))
    )
    assert first == again
    assert first != other
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.pkl"]


@pytest.mark.opencl
def test_constants_have_the_sizes_that_are_bound(tmp_path: Path, modeld: Modeld) -> None:
    """y = x + image; the name of the batch is only one of `image`, which is gone then."""
    path, out = tmp_path / "m.onnx", tmp_path / "m.pkl"
    inputs = [value("x", ("rows", 2)), value("image", ("batch", 2))]
    onnx.save(
        model_of([helper.make_node("Add", ["x", "image"], ["y"])], inputs, [value("y", (None, 2))]),
        path,
    )
    words = ("compile", path, "-o", out, "--no-binary", "--constant")
    said = modeld(0, *words, "image=3", "--bind", "batch=4", "--bind", "rows=1", "--json").json
    assert said["notes"] == []
    found = modeld(0, "exec", out, "--random", "--json").json["outputs"]
    assert found[0]["shape"] == [4, 2]
    modeld.refused(
        4, "float[batch, 2], found 3; give its size with --bind batch=", *words, "image=3"
    )
    more = ("image=3", "--bind", "batch=4", "--bind", "width=1")
    modeld.refused(4, 'no input has a dimension "width"', *words, *more)
