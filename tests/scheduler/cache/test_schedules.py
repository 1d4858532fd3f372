"""The cache of schedules: a hit is what compiling gives, and whatever changes is a miss."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime.entry_store import EntryStore
from runtime.plainpickle import encode
from scheduler import Tensor
from scheduler.cache import schedules as schedule_cache
from scheduler.cache.schedules import EntryGraph, Lru, ScheduleCache
from scheduler.compile import compile_plain
from scheduler.context import CompileContext, Stages, context_for
from scheduler.device.limits import TABLE
from scheduler.device.spec import DEFAULT
from scheduler.emit.artifact import Emitted
from scheduler.errors import SchedulerError
from scheduler.flags import Flags
from scheduler.ir.origin import Origins
from scheduler.tensor.session import SESSION
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


class Log:
    """Where results came from, in order."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "scheduler.cache.schedules")
        self._caplog = caplog

    def take(self) -> list[str]:
        records = [r for r in self._caplog.records if r.levelno == logging.DEBUG]
        found = [r.getMessage().partition(": ")[2] for r in records]
        self._caplog.clear()
        return found


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    if schedule_cache.compiler_version() is None:
        pytest.skip("the compiler's source was edited since the tests began: nothing is kept")
    return Log(caplog)


def network(weight: np.ndarray = W) -> Tensor:
    x = Tensor.input("x", (4, 16))
    return (x @ Tensor.weight(weight.copy()) + 0.5).softmax(-1)


def emitted(
    cache: ScheduleCache,
    tensor: Tensor,
    context: CompileContext | None = None,
    *,
    options: str = "",
    name: str = "n",
    out: str = "out",
    label: str = "/a",
) -> Emitted:
    origins = Origins()
    origins.name([tensor.node], (label,))
    graph = EntryGraph({out: tensor.node}, origins=origins)
    context = context or context_for()
    return cache.emitted({"run": graph}, context, name=name, kind="plain", options=options)


def as_bytes(made: Emitted) -> bytes:
    return encode([made.manifest, made.data, made.arena_unplanned])


def fresh(cache: ScheduleCache, tensor: Tensor, monkeypatch: pytest.MonkeyPatch) -> bytes:
    with monkeypatch.context() as patch:
        patch.setenv("SCHEDULE_CACHE", "0")
        return as_bytes(emitted(cache, tensor))


# --- hits -----------------------------------------------------------------------------------------


def test_hits_are_equal_to_a_fresh_compilation(
    cache: ScheduleCache, log: Log, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    expected = fresh(cache, network(), monkeypatch)
    results = [as_bytes(emitted(cache, network()))]
    results.append(as_bytes(emitted(cache, network())))
    cache = ScheduleCache(directory)
    results.append(as_bytes(emitted(cache, network())))
    assert log.take() == ["compiled", "compiled", "taken from memory", "taken from disk"]
    assert results == [expected] * 3


def test_what_a_caller_does_to_a_result_stays_there(cache: ScheduleCache) -> None:
    made = emitted(cache, network())
    before = as_bytes(made)
    for _ in range(2):
        made.manifest["models"].append("mine")
        made.manifest["kernels"].clear()
        made = emitted(cache, network())
        assert as_bytes(made) == before


def test_off_means_off(
    cache: ScheduleCache, directory: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULE_CACHE", "0")
    emitted(cache, network())
    emitted(cache, network())
    assert log.take() == ["compiled", "compiled"]
    assert not directory.exists()


def test_memory_alone_leaves_nothing_on_disk(directory: Path, log: Log) -> None:
    graph, cache = {"run": EntryGraph({"out": network().node})}, ScheduleCache()
    for _ in range(2):
        cache.emitted(graph, context_for(), name="n", kind="plain")
    assert log.take() == ["compiled", "taken from memory"]
    assert not directory.exists()


def test_an_onnx_file_is_compiled_once(log: Log, tmp_path: Path, directory: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/mm"),
        helper.make_node("Relu", ["h"], ["y"], name="/relu"),
    ]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 16]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], [numpy_helper.from_array(W, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "small.onnx"
    onnx.save(model, str(path))
    written = []
    for turn in range(3):
        written.append(tmp_path / f"{turn}.pkl")
        compile_plain(path).write(written[-1])
    assert log.take() == ["compiled", "taken from disk", "taken from disk"]
    assert len({p.read_bytes() for p in written}) == 1
    assert len(list(directory.iterdir())) == 1


# --- misses ---------------------------------------------------------------------------------------


def test_what_changes_the_result_is_compiled_again(
    cache: ScheduleCache, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted(cache, network())
    log.take()
    emitted(cache, network(W + 1))
    emitted(cache, network(), label="/b")
    emitted(cache, network(), options="-cl-mad-enable")
    emitted(cache, network(), name="m")
    emitted(cache, network(), out="y")
    emitted(cache, network(), context_for(replace(DEFAULT, limits=TABLE["webgpu"])))
    emitted(cache, network(), context_for(precision="fp16"))
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "5")
    emitted(cache, network())
    monkeypatch.delenv("MAX_KERNEL_BUFFERS")
    emitted(cache, network(), context_for(flags=Flags(float_unsafe=True)))
    assert log.take() == ["compiled"] * 9
    emitted(cache, network())
    assert log.take() == ["taken from memory"]


def test_values_written_into_a_weight_are_a_miss(cache: ScheduleCache, log: Log) -> None:
    values = W.copy()
    tensor = Tensor.input("x", (4, 16)) @ Tensor.weight(values)
    emitted(cache, tensor)
    values[0, 0] += 1
    made = emitted(cache, tensor)
    assert log.take() == ["compiled", "compiled"]
    assert np.float32(values[0, 0]).tobytes() in made.data


def test_states_and_inputs_are_part_of_the_request(cache: ScheduleCache, log: Log) -> None:
    x, y = Tensor.input("x", (4,)), Tensor.input("y", (4,))
    state = Tensor.state("s", (4,))
    out, write = (x + 1.0).node, state.assign(x).node
    for graph in (
        EntryGraph({"o": out}),
        EntryGraph({"o": out}, [write]),
        EntryGraph({"o": out}, [], [x.node]),
        EntryGraph({"o": out}, [], [x.node, y.node]),
        EntryGraph({"o": out}, [], [y.node, x.node]),
    ):
        cache.emitted({"run": graph}, context_for(), name="n", kind="plain")
    assert log.take() == ["compiled"] * 5


def test_a_shared_state_is_not_two_states_of_one_name(cache: ScheduleCache, log: Log) -> None:
    def entries(*states: Tensor) -> dict[str, EntryGraph]:
        return {
            f"e{i}": EntryGraph({"o": (s + 1.0).node}, [s.assign(s * 2.0).node])
            for i, s in enumerate(states)
        }

    one, first, second = (Tensor.state("s", (4,)) for _ in range(3))
    shared = cache.emitted(entries(one, one), context_for(), name="n", kind="plain")
    apart = cache.emitted(entries(first, second), context_for(), name="n", kind="plain")
    assert log.take() == ["compiled", "compiled"]
    assert len(apart.manifest["buffers"]) > len(shared.manifest["buffers"])


def test_errors_are_raised_every_time(cache: ScheduleCache) -> None:
    same = Tensor.input("x", (4,)) + Tensor.input("x", (4,))
    graph = EntryGraph({"o": same.node})
    for _ in range(2):
        with pytest.raises(SchedulerError, match="two inputs have the same name"):
            cache.emitted({"run": graph}, context_for(), name="n", kind="plain")


# --- who watches ----------------------------------------------------------------------------------


def test_who_asks_for_stages_sees_a_real_compilation(cache: ScheduleCache, log: Log) -> None:
    before = as_bytes(emitted(cache, network()))
    stages = Stages()
    assert as_bytes(emitted(cache, network(), CompileContext(stages=stages))) == before
    assert stages.graphs
    assert log.take() == ["compiled", "compiled"]


@pytest.mark.parametrize("variable", ["DEBUG", "VIZ"])
def test_debug_and_viz_see_a_real_compilation(
    cache: ScheduleCache, variable: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted(cache, network())
    monkeypatch.setenv(variable, "1" if variable == "DEBUG" else str(tmp_path / "page.html"))
    emitted(cache, network())
    assert log.take().count("compiled") == 2


def test_a_schedule_is_made_once_for_the_same_nodes(cache: ScheduleCache) -> None:
    tensor = network()
    graph = EntryGraph({"out": tensor.node})
    context = context_for()
    plan = cache.schedule(graph, context)
    assert cache.schedule(EntryGraph({"out": tensor.node}), context) is plan
    equal = EntryGraph({"out": network().node})  # and not the same
    assert cache.schedule(equal, context) is not plan
    assert cache.schedule(graph, replace(context, stages=Stages())) is not plan


def test_a_schedule_of_changed_weights_is_made_again(cache: ScheduleCache) -> None:
    values = W.copy()
    graph = EntryGraph({"out": (Tensor.input("x", (4, 16)) @ Tensor.weight(values)).node})
    plan = cache.schedule(graph, context_for())
    assert cache.schedule(graph, context_for()) is plan
    values += 1
    assert cache.schedule(graph, context_for()) is not plan


# --- disk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "swap", "text"])
def test_damaged_entries_are_made_again(
    cache: ScheduleCache, damage: str, directory: Path, log: Log
) -> None:
    expected = as_bytes(emitted(cache, network()))
    (path,) = directory.iterdir()
    content = path.read_bytes()
    if damage == "swap":  # a whole entry, but of another key
        emitted(cache, network(W + 1))
        (other,) = set(directory.iterdir()) - {path}
        path.write_bytes(other.read_bytes())
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(
            {"flip": flipped, "truncate": content[:-5], "empty": b"", "text": b"hello"}[damage]
        )
    cache = ScheduleCache(directory)
    log.take()
    assert as_bytes(emitted(cache, network())) == expected
    assert log.take() == ["compiled"]
    assert path.read_bytes() == content


def test_an_entry_that_is_no_schedule_is_made_again(
    cache: ScheduleCache, directory: Path, log: Log
) -> None:
    emitted(cache, network())
    (path,) = directory.iterdir()
    EntryStore(directory, "schedule").put(path.name, (5).to_bytes(8, "little") + b"12345")
    cache = ScheduleCache(directory)
    log.take()
    emitted(cache, network())
    assert "compiled" in log.take()


def test_the_directory_is_private(cache: ScheduleCache, directory: Path, log: Log) -> None:
    emitted(cache, network())
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o777)
    cache = ScheduleCache(directory)
    log.take()
    emitted(cache, network())
    assert log.take() == ["compiled"]
    assert len(list(directory.iterdir())) == 1


def test_a_directory_that_cannot_be_made_is_no_error(
    cache: ScheduleCache, directory: Path, log: Log
) -> None:
    directory.write_text("a file in its place", encoding="utf-8")
    emitted(cache, network())
    assert log.take() == ["compiled"]
    assert directory.read_text(encoding="utf-8") == "a file in its place"


def test_disk_use_is_bounded_and_the_oldest_used_go_first(directory: Path) -> None:
    store = EntryStore(directory, "schedule", max_bytes=1000, max_files=3)
    clock = 0

    def put(key: str, size: int) -> None:
        nonlocal clock
        clock += 1
        store.put(key, bytes(size))
        if (directory / key).exists():
            os.utime(directory / key, ns=(clock, clock))

    for name in "abc":
        put(name, 100)
    assert store.get("a") == bytes(100)  # used last now
    put("d", 100)
    assert sorted(p.name for p in directory.iterdir()) == ["a", "c", "d"]
    put("e", 750)
    names = {p.name for p in directory.iterdir()}
    assert "e" in names
    assert sum(p.stat().st_size for p in directory.iterdir()) <= 1000
    put("f", 2000)  # larger than everything that may be kept
    assert {p.name for p in directory.iterdir()} == names


def test_leftovers_of_a_dead_process_are_removed(directory: Path) -> None:
    store = EntryStore(directory, "schedule")
    store.put("a", b"1")
    old, new = directory / ".new-old", directory / ".new-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, ns=(0, 0))
    store.put("b", b"2")
    assert not old.exists()
    assert new.exists()


PROCESS = """
import hashlib, sys
import numpy as np
from runtime.plainpickle import encode
from scheduler import Tensor
from pathlib import Path
from scheduler.cache.schedules import EntryGraph, ScheduleCache
from scheduler.context import context_for
x = Tensor.input("x", (4, 16))
cache = ScheduleCache(Path(sys.argv[1]))
total = hashlib.sha256()
for i in range(6):
    w = Tensor.weight(np.full((16, 16), i, np.float32))
    graph = EntryGraph({"out": (x @ w).softmax(-1).node})
    made = cache.emitted({"run": graph}, context_for(), name="n", kind="plain")
    total.update(encode([made.manifest, made.data]))
print(total.hexdigest())
"""


def test_processes_at_once_agree_and_leave_whole_entries(directory: Path) -> None:
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
    results = {process.communicate(timeout=120)[0] for process in running}
    assert all(process.returncode == 0 for process in running)
    assert len(results) == 1
    assert results != {""}
    names = [p.name for p in directory.iterdir()]
    assert len(names) == 6
    assert not any(name.startswith(".") for name in names)
    store = EntryStore(directory, "schedule")
    assert all(store.get(name) for name in names)


# --- versions -------------------------------------------------------------------------------------

VERSION = """
import sys
from pathlib import Path
from scheduler.cache.schedules import compiler_version
print(compiler_version())
path = Path("scheduler/emit/artifact.py")
path.write_text(path.read_text(encoding="utf-8") + "# changed while it ran\\n")
print(compiler_version())
"""


def test_a_changed_compiler_has_another_version(tmp_path: Path) -> None:
    for package in ("scheduler", "runtime"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)

    def versions() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", VERSION],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return done.stdout.split()

    first, while_running = versions()
    second, _ = versions()
    assert len(first) == len(second) == 64
    assert first != second
    assert while_running == "None"  # what runs is not what stands there


# --- memory ---------------------------------------------------------------------------------------


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
        graph = EntryGraph({"out": (Tensor.input("x", (4,)) * float(i)).node})
        cache.emitted({"run": graph}, context_for(), name="n", kind="plain")
    assert len(cache._emitted) == schedule_cache.MEMORY_ENTRIES
    assert cache._emitted.weight <= schedule_cache.MEMORY_BYTES


def test_default_limits_are_those_of_the_processor() -> None:
    assert context_for().limits == TABLE["cpu"]


@pytest.mark.opencl
def test_tensors_of_one_structure_are_compiled_once(log: Log) -> None:
    SESSION.clear()
    values = [rng().standard_normal((8, 16)).astype(np.float32) for _ in range(2)]
    log.take()
    results = [(Tensor(v) @ Tensor.weight(W)).relu().numpy() for v in values]
    assert log.take() == ["compiled", "taken from memory"]
    for got, value in zip(results, values, strict=True):
        np.testing.assert_allclose(got, np.maximum(value @ W, 0), rtol=1e-5, atol=1e-5)
