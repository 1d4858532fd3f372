"""The self-test that the compiler makes: programs of every kind pass it, others do not."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.format.artifact import from_memory, read_artifact, write_artifact
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program, load_program
from runtime.run.selftest import SelfTestReport, run_self_test, self_test
from scheduler.check import vectors
from scheduler.check.vectors import with_self_test
from scheduler.compile import CompiledModel, compile_driving, compile_monitoring, compile_plain
from scheduler.driving.revisions import load_monitoring, load_revisions
from scheduler.emit.artifact import emit
from scheduler.ir import dtype as dt
from scheduler.onnx_import import from_proto
from scheduler.pipeline import schedule
from scheduler.schedule_cache import EntryGraph
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.support.revisions import models_of, revision_artifact
from tests.support.built import interface_models
from tests.support.selection import quick_cases
from tools.timing.run_parts import Stepper


def report_of(compiled: CompiledModel) -> SelfTestReport:
    device = choose_device()
    artifact = from_memory(compiled.manifest, compiled.data)
    with Program(artifact, device, shared_cache(device)) as program:
        return run_self_test(program)


def small_plain() -> CompiledModel:
    rng = np.random.default_rng(0)
    proto = parsed(
        """(float[1,3,8,8] x) => (float[1,5] y, float[1,8,1,1] c)
        { a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a) c = GlobalAveragePool(b)
          d = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b) e = Flatten(d) y = MatMul(e, v) }
        """,
        w=rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        v=rng.standard_normal((128, 5)).astype(np.float32),
    )
    return compile_plain(from_proto(proto))


@pytest.mark.opencl
@pytest.mark.parametrize("name", quick_cases(load_revisions(), "split-2025"))
def test_driving_programs_of_every_revision_pass(name: str) -> None:
    path = revision_artifact(name)
    with load_program(path) as program:
        report = run_self_test(program)
    report.require()
    manifest = read_artifact(path).manifest
    prepared = {("prepare", 3)} if "prepare" in [e.name for e in manifest.entries] else set()
    assert {(d.entry, d.seed) for d in report.deviations} == {("run", 1), ("run", 2)} | prepared
    written = {(d.kind, d.name) for d in report.deviations if d.entry == "run"}
    states = {("state", b.name) for b in manifest.buffers if b.kind == "state"}
    assert states == {w for w in written if w[0] != "output"}
    assert states != written
    assert report.worst is not None
    # Far from the tolerance, so that it is not a lottery on another device.
    assert report.worst.deviation <= report.worst.tolerance / 10


@pytest.mark.opencl
@pytest.mark.slow
def test_half_storage_passes_with_a_wider_tolerance() -> None:
    paths = list(models_of("split-2025").values())
    report = report_of(with_self_test(compile_driving(paths, precision="fp16"), keep=False))
    report.require()
    assert {d.tolerance for d in report.deviations if d.kind == "output"} == {2e-2}


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("name", load_monitoring())
def test_monitoring_programs_pass(name: str) -> None:
    (path,) = interface_models(name)
    report = report_of(with_self_test(compile_monitoring(path), keep=False))
    report.require()
    assert report.runs == 2


@pytest.mark.opencl
def test_plain_programs_pass_and_another_one_fails(tmp_path: Path) -> None:
    compiled = with_self_test(small_plain())
    report = report_of(compiled)
    report.require()
    assert [(d.entry, d.seed, d.name) for d in report.deviations] == [
        ("run", seed, name) for seed in (1, 2) for name in ("y", "c")
    ]
    # The sign of a weight, with the digest that belongs to it.
    data = bytearray(compiled.data)
    weight = next(b for b in compiled.manifest["buffers"] if b["kind"] == "weight")
    (word,) = struct.unpack_from("<I", data, weight["offset"])
    struct.pack_into("<I", data, weight["offset"], word ^ 1 << 31)
    assert not report_of(replace(compiled, data=bytes(data))).passed
    write_artifact(tmp_path / "a.pkl", compiled.manifest, compiled.data)
    with load_program(tmp_path / "a.pkl") as program:
        assert self_test(program).runs == 2


@pytest.mark.opencl
def test_inputs_and_states_of_rank_0_are_tested_set_and_stepped() -> None:
    x, n, old = Tensor.input("x", ()), Tensor.input("n", (), dt.uint8), Tensor.state("s", ())
    new = old.assign(old * 0.5 + x)
    outputs = {"y": (new * 2.0).node, "k": (n.cast(dt.float32) + 1.0).node}
    made = emit({"run": schedule(outputs, [new.node])}, name="m", kind="plain")
    graphs = {"run": EntryGraph(outputs, [new.node])}
    compiled = CompiledModel(made.manifest, made.data, 0, graphs=graphs)
    compiled = with_self_test(compiled, keep=False)
    device, two = choose_device(), np.asarray(2, np.float32)
    inputs: dict[str, Any] = {"x": np.asarray(3, np.float32), "n": np.asarray(4, np.uint8)}
    artifact = from_memory(compiled.manifest, compiled.data)
    with Program(artifact, device, shared_cache(device)) as program:
        report = run_self_test(program)
        report.require()
        assert report.runs == 2
        stepper = Stepper(program)
        for write in (program.set_state, lambda name, value: stepper.set_states({name: value})):
            write("s", two)
            found = program.run(inputs)
            assert found["y"].shape == program.state("s").shape == ()
            assert [float(one) for one in (found["y"], found["k"], program.state("s"))] == [8, 5, 4]
        stepper.set_states({"s": two})
        assert len(list(stepper.launches(inputs, "run"))) == len(made.manifest["kernels"])
        assert stepper.states()["s"] == 4.0


def test_vectors_come_from_the_cache_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = small_plain()
    made = with_self_test(compiled, keep=False).manifest["self_test"]
    assert with_self_test(compiled, keep=False).manifest["self_test"] == made
    assert with_self_test(compiled).manifest["self_test"] == made

    def fail(*_: object) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(vectors, "_vector", fail)
    assert with_self_test(compiled).manifest["self_test"] == made
    assert compiled.manifest["self_test"] == {}


def test_what_cannot_be_tested_has_a_note_and_no_self_test() -> None:
    proto = parsed("(float[4] x) => (float[4] y) { a = Mul(x, x) b = Neg(a) y = Log(b) }")
    tested = with_self_test(compile_plain(from_proto(proto)))
    assert tested.manifest["self_test"] == {}
    assert tested.notes[-1] == (
        'no self-test: output "y" of entry run is not finite for inputs near N(0, 1)'
    )
    heavy = small_plain()
    heavy.manifest["kernels"][0]["flops"] = 10**13
    assert "more than the 2e+11" in with_self_test(heavy).notes[-1]


@pytest.mark.opencl
@pytest.mark.parametrize(("flops", "runs"), [(10**10, 2), (3 * 10**10, 1)])
def test_what_takes_long_has_one_seed(flops: int, runs: int) -> None:
    heavy = small_plain()
    heavy.manifest["kernels"][0]["flops"] = flops
    assert report_of(with_self_test(heavy, keep=False)).runs == runs


@pytest.mark.opencl
def test_integers_are_indices_of_nearly_all() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    proto = parsed("(int64[5] i) => (float[5,3] y) { y = Gather(table, i) }", table=table)
    report = report_of(with_self_test(compile_plain(from_proto(proto))))
    report.require()
    assert report.runs == 2
