"""The cache of schedules: a hit is what compiling gives, and whatever changes is a miss."""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from runtime.files.cache import EntryStore
from runtime.format.plainpickle import encode
from scheduler import Tensor, schedule_cache
from scheduler.compile import compile_plain
from scheduler.context import CompileContext, Stages, context_for
from scheduler.device.spec import DEFAULT, LIMITS, SPECS
from scheduler.emit.artifact import Emitted
from scheduler.errors import SchedulerError
from scheduler.flags import Flags
from scheduler.ir.origin import Origins
from scheduler.schedule_cache import EntryGraph, Lru, ScheduleCache
from scheduler.tensor.eager import SESSION
from tests.scheduler.onnx_import.onnx_models import model_of, node
from tests.scheduler.support.values import rng

ROOT = Path(__file__).parents[3]
W = np.random.default_rng(5).standard_normal((16, 16)).astype(np.float32)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SCHEDULE_CACHE", "1")
    for name in ("DEBUG", "VIZ", "MAX_KERNEL_BUFFERS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "schedules"


@pytest.fixture
def cache(directory: Path) -> ScheduleCache:
    return ScheduleCache(directory)


Sources = Callable[[], list[str]]


@pytest.fixture
def sources(caplog: pytest.LogCaptureFixture) -> Sources:
    """Return a function that says where the results since the last call came from, in order."""
    if schedule_cache.compiler_version() is None:
        pytest.skip("the compiler's source was edited since the tests began: nothing is kept")
    caplog.set_level(logging.DEBUG, "scheduler.schedule_cache")

    def take() -> list[str]:
        records = [r for r in caplog.records if r.levelno == logging.DEBUG]
        found = [r.getMessage().partition(": ")[2] for r in records]
        caplog.clear()
        return found

    return take


def network(weight: np.ndarray = W) -> Tensor:
    x = Tensor.input("x", (4, 16))
    return (x @ Tensor.weight(weight.copy()) + 0.5).softmax(-1)


def emitted(
    cache: ScheduleCache,
    what: Tensor | EntryGraph | None = None,
    context: CompileContext | None = None,
    *,
    out: str = "out",
    label: str = "/a",
    **options: Any,
) -> Emitted:
    """Return an artifact of one entry; without a graph it is the network's, built again."""
    if not isinstance(what, EntryGraph):
        tensor, origins = network() if what is None else what, Origins()
        origins.name([tensor.node], (label,))
        what = EntryGraph({out: tensor.node}, origins=origins)
    more = {"name": "n", "kind": "plain", **options}
    return cache.emitted({"run": what}, context or context_for(), **more)


def as_bytes(made: Emitted) -> bytes:
    return encode([made.manifest, made.data, made.arena_unplanned])


def test_hits_are_equal_to_a_fresh_compilation(
    cache: ScheduleCache, sources: Sources, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SCHEDULE_CACHE", "0")
        expected = [as_bytes(emitted(cache)) for _ in range(2)]
    alone = ScheduleCache()
    expected += [as_bytes(emitted(alone)) for _ in range(2)]
    assert sources() == ["compiled"] * 3 + ["taken from memory"]
    assert not directory.exists()  # off means off, and memory alone leaves nothing on disk
    found = [as_bytes(emitted(c)) for c in (cache, cache, ScheduleCache(directory))]
    assert sources() == ["compiled", "taken from memory", "taken from disk"]
    assert [*expected, *found] == [expected[0]] * 7


def test_what_a_caller_does_to_a_result_stays_there(cache: ScheduleCache) -> None:
    made = emitted(cache)
    before = as_bytes(made)
    for _ in range(2):
        made.manifest["models"].append("mine")
        made.manifest["kernels"].clear()
        made = emitted(cache)
        assert as_bytes(made) == before


def test_an_onnx_file_is_compiled_once(sources: Sources, tmp_path: Path, directory: Path) -> None:
    nodes = [node("MatMul", "x w", "h", "/mm"), node("Relu", "h", "y", "/relu")]
    model = model_of(nodes, [("x", [4, 16])], [("y", [4, 16])], {"w": W})
    onnx.save(model, str(tmp_path / "small.onnx"))
    written = []
    for turn in range(3):
        written.append(tmp_path / f"{turn}.pkl")
        compile_plain(tmp_path / "small.onnx").write(written[-1])
    assert sources() == ["compiled", "taken from disk", "taken from disk"]
    assert len({p.read_bytes() for p in written}) == 1
    assert len(list(directory.iterdir())) == 1


@pytest.mark.opencl
def test_tensors_of_one_structure_are_compiled_once(sources: Sources) -> None:
    SESSION.clear()
    values = [rng().standard_normal((8, 16)).astype(np.float32) for _ in range(2)]
    sources()
    results = [(Tensor(v) @ Tensor.weight(W)).relu().numpy() for v in values]
    assert sources() == ["compiled", "taken from memory"]
    for got, value in zip(results, values, strict=True):
        np.testing.assert_allclose(got, np.maximum(value @ W, 0), rtol=1e-5, atol=1e-5)


def test_what_changes_the_result_is_compiled_again(
    cache: ScheduleCache, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert context_for().limits == LIMITS["cpu"]
    plain = emitted(cache)
    sources()
    emitted(cache, network(W + 1))
    emitted(cache, label="/b")
    emitted(cache, options="-cl-mad-enable")
    emitted(cache, name="m")
    emitted(cache, out="y")
    emitted(cache, None, context_for(replace(DEFAULT, limits=LIMITS["webgpu"])))
    half = emitted(cache, None, context_for(precision="fp16"))
    other = emitted(cache, None, context_for(SPECS["gpu"]))
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "5")
    emitted(cache)
    monkeypatch.delenv("MAX_KERNEL_BUFFERS")
    emitted(cache, None, context_for(flags=Flags(float_unsafe=True)))
    assert sources() == ["compiled"] * 10
    assert [other.manifest["target"]["name"], len(half.data)] == ["gpu", len(plain.data) // 2]
    assert ["precision" in made.manifest["metadata"] for made in (plain, half)] == [False, True]
    emitted(cache)
    assert sources() == ["taken from memory"]


def test_values_written_into_a_weight_are_a_miss(cache: ScheduleCache, sources: Sources) -> None:
    values = W.copy()
    tensor = Tensor.input("x", (4, 16)) @ Tensor.weight(values)
    emitted(cache, tensor)
    values[0, 0] += 1
    made = emitted(cache, tensor)
    assert sources() == ["compiled", "compiled"]
    assert np.float32(values[0, 0]).tobytes() in made.data


def test_states_and_inputs_are_part_of_the_request(cache: ScheduleCache, sources: Sources) -> None:
    x, y = Tensor.input("x", (4,)), Tensor.input("y", (4,))
    out, write = {"o": (x + 1.0).node}, Tensor.state("s", (4,)).assign(x).node
    emitted(cache, EntryGraph(out))
    emitted(cache, EntryGraph(out, [write]))
    for inputs in ([x.node], [x.node, y.node], [y.node, x.node]):
        emitted(cache, EntryGraph(out, [], inputs))
    assert sources() == ["compiled"] * 5


def test_a_shared_state_is_not_two_states_of_one_name(
    cache: ScheduleCache, sources: Sources
) -> None:
    def buffers(*states: Tensor) -> int:
        entries = {
            f"e{i}": EntryGraph({"o": (s + 1.0).node}, [s.assign(s * 2.0).node])
            for i, s in enumerate(states)
        }
        made = cache.emitted(entries, context_for(), name="n", kind="plain")
        return len(made.manifest["buffers"])

    one, first, second = (Tensor.state("s", (4,)) for _ in range(3))
    assert buffers(one, one) < buffers(first, second)
    assert sources() == ["compiled", "compiled"]


def test_errors_are_raised_every_time(cache: ScheduleCache) -> None:
    same = Tensor.input("x", (4,)) + Tensor.input("x", (4,))
    for _ in range(2):
        with pytest.raises(SchedulerError, match="two inputs have the same name"):
            emitted(cache, same)


def test_who_asks_for_stages_sees_a_real_compilation(
    cache: ScheduleCache, sources: Sources
) -> None:
    before, stages = as_bytes(emitted(cache)), Stages()
    assert as_bytes(emitted(cache, None, CompileContext(stages=stages))) == before
    assert stages.graphs
    assert sources() == ["compiled", "compiled"]


@pytest.mark.parametrize("variable", ["DEBUG", "VIZ"])
def test_debug_and_viz_see_a_real_compilation(
    cache: ScheduleCache, variable: str, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted(cache)
    page = Path(os.environ["MODELD_CACHE_DIR"], "page.html")
    monkeypatch.setenv(variable, "1" if variable == "DEBUG" else str(page))
    emitted(cache)
    assert sources().count("compiled") == 2


def test_a_schedule_is_made_once_for_the_same_nodes(cache: ScheduleCache) -> None:
    values = W.copy()
    tensor = Tensor.input("x", (4, 16)) @ Tensor.weight(values)
    graph, context = EntryGraph({"out": tensor.node}), context_for()
    plan = cache.schedule(graph, context)
    assert cache.schedule(EntryGraph({"out": tensor.node}), context) is plan
    equal = EntryGraph({"out": (Tensor.input("x", (4, 16)) @ Tensor.weight(values)).node})
    assert cache.schedule(equal, context) is not plan
    assert cache.schedule(graph, replace(context, stages=Stages())) is not plan
    other = context_for(replace(DEFAULT, limits=LIMITS["webgpu"]))
    assert cache.schedule(graph, other) is not plan
    assert ScheduleCache().schedule(graph, context) is not plan
    values += 1
    assert cache.schedule(graph, context) is not plan


def of_another_key(path: Path) -> None:
    emitted(ScheduleCache(path.parent), network(W + 1))
    (other,) = set(path.parent.iterdir()) - {path}
    path.write_bytes(other.read_bytes())


def no_schedule(path: Path) -> None:
    EntryStore(path.parent, "schedule").put(path.name, (5).to_bytes(8, "little") + b"12345")


# What else may happen to an entry is found by the store (tests/runtime/test_program_cache.py).
@pytest.mark.parametrize("damage", [of_another_key, no_schedule])
def test_damaged_entries_are_made_again(
    cache: ScheduleCache, damage: Callable[[Path], None], directory: Path, sources: Sources
) -> None:
    expected = as_bytes(emitted(cache))
    (path,) = directory.iterdir()
    content = path.read_bytes()
    damage(path)
    sources()
    assert as_bytes(emitted(ScheduleCache(directory))) == expected
    assert sources()[-1] == "compiled"
    assert path.read_bytes() == content


def test_a_directory_that_cannot_be_made_is_no_error(
    cache: ScheduleCache, directory: Path, sources: Sources
) -> None:
    directory.write_text("a file in its place", encoding="utf-8")
    emitted(cache)
    assert sources() == ["compiled"]
    assert directory.read_text(encoding="utf-8") == "a file in its place"


def several(directory: Path) -> str:
    """Compile six graphs and return the digest of what came of them."""
    cache = ScheduleCache(directory)
    made = [emitted(cache, network(np.full((16, 16), i, np.float32))) for i in range(6)]
    return hashlib.sha256(b"".join(map(as_bytes, made))).hexdigest()


PROCESS = """
import pathlib, sys
from tests.scheduler.cache.test_schedules import several
print(several(pathlib.Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_processes_at_once_agree_and_leave_whole_entries(directory: Path, sources: Sources) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(directory)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2", "3")
    ]
    results = {process.communicate(timeout=120)[0].strip() for process in running}
    assert all(process.returncode == 0 for process in running)
    names = [p.name for p in directory.iterdir()]
    assert len(names) == 6
    assert not any(name.startswith(".") for name in names)
    # This process takes all of them from disk, and they are the same.
    assert results == {several(directory)}
    assert sources() == ["taken from disk"] * 6


VERSION = """
from pathlib import Path
from scheduler.schedule_cache import compiler_version
print(compiler_version())
path = Path("scheduler/emit/artifact.py")
path.write_text(path.read_text(encoding="utf-8") + "# changed while it ran\\n")
print(compiler_version())
"""


@pytest.mark.slow
def test_a_changed_compiler_has_another_version(tmp_path: Path) -> None:
    for package in ("scheduler", "runtime"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", VERSION]
    found = [
        subprocess.check_output(command, cwd=tmp_path, env=environment, text=True, timeout=120)
        for _ in range(2)
    ]
    (first, while_running), (second, _) = (text.split() for text in found)
    assert len(first) == len(second) == 64
    assert first != second
    assert while_running == "None"  # what runs is not what stands there


def test_memory_is_bounded_by_count_and_weight() -> None:
    kept: Lru[int] = Lru(entries=3, weight=100)
    for i in range(5):
        kept.put(i, i, 10)
    assert [kept.get(i) for i in range(5)] == [None, None, 2, 3, 4]
    assert kept.get(2) == 2
    kept.put(5, 5, 85)  # drops those used longest ago: 3 and 4
    assert [kept.get(i) for i in (2, 3, 4, 5)] == [2, None, None, 5]
    assert kept.weight == 95
    kept.put(6, 6, 101)
    assert kept.get(6) is None
    kept.put(5, 50, 1)
    assert (kept.get(5), kept.weight, len(kept)) == (50, 11, 2)


def test_results_in_memory_are_within_the_bounds() -> None:
    cache = ScheduleCache()
    for i in range(schedule_cache.MEMORY_ENTRIES + 10):
        emitted(cache, Tensor.input("x", (4,)) * float(i))
    assert len(cache._emitted) == schedule_cache.MEMORY_ENTRIES
    assert cache._emitted.weight <= schedule_cache.MEMORY_BYTES
