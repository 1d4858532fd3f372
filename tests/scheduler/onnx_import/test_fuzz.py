"""Damaged models by the thousand: each gives a model or one clear line, in time and memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scheduler.compile import compile_plain
from scheduler.errors import SchedulerError, UnsupportedOpError
from scheduler.onnx_import import from_proto, import_model, load_model
from tests.scheduler.onnx_import.model_mutations import damaged_bytes, damaged_model
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_models import FLOAT, model_of, node
from tests.scheduler.onnx_import.test_networks import SMALL
from tests.scheduler.onnx_import.test_ops import build

SECONDS = 20  # for one model; the machine may be busy
MEMORY_BYTES = 1 << 30
MESSAGE = 400
OPERATOR_CASES = 300
LEAST, MOST = 200, 2500  # damaged models; as many as there is time for


class Late(BaseException):
    """A model took too long; nothing in between may catch this."""


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def peak_bytes() -> int:
    """Return the most memory the process had since the last reset."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = peak_bytes()
    yield
    assert peak_bytes() - before < MEMORY_BYTES


def accepted(run: Callable[[], object]) -> bool:
    """Run; return whether nothing was refused. A refusal is a typed error in one line."""
    refused: SchedulerError | None = None
    try:
        with alarm(SECONDS):
            run()
    except SchedulerError as error:
        refused = error
    text = str(refused or "")
    assert text.isprintable(), ascii(text)
    # Unsupported operators are all listed.
    assert len(text) <= MESSAGE or isinstance(refused, UnsupportedOpError), text
    return refused is None


def recurrent() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    weights = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (1, 12, 3)), ("r", (1, 12, 4)), ("b", (1, 24)))
    }
    gru = node("GRU", "x w r b", "all last", "gru", hidden_size=4, linear_before_reset=1)
    return model_of(
        [gru], [("x", [5, 2, 3])], [("all", [5, 1, 2, 4]), ("last", [1, 2, 4])], weights
    )


def branching() -> onnx.ModelProto:
    def branch(op: str) -> onnx.GraphProto:
        nodes = [node(op, "x", f"{op}_a"), node("Add", f"{op}_a w", op)]
        weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
        return helper.make_graph(
            nodes, op, [], [helper.make_tensor_value_info(op, FLOAT, [4])], [weight]
        )

    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "flag"),
        node("If", "flag", "y", "choice", then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    return model_of(nodes, weights={"zero": np.float32(0)})


def looping() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Identity", "go", "go_on"),
            node("Add", "value x", "next"),
            node("Tanh", "next", "each"),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("go", TensorProto.BOOL, []),
            info("value", FLOAT, [4]),
        ],
        [info(n, t, s) for n, t, s in (("go_on", 9, []), ("next", 1, [4]), ("each", 1, [4]))],
    )
    loop = node("Loop", "count true x", "y stack", "loop", body=body)
    weights = {"count": np.int64(3), "true": np.array(True)}
    return model_of([loop], outputs=[("y", [4]), ("stack", [3, 4])], weights=weights)


@cache
def seeds() -> tuple[onnx.ModelProto, ...]:
    """Models to damage: operators of every theme, control flow, recurrence."""
    rng = np.random.default_rng(17)
    picked = [CASES[i] for i in rng.permutation(len(CASES))[:OPERATOR_CASES]]
    models = [build(case, folded=bool(i % 4 == 0))[0] for i, case in enumerate(picked)]
    small = [m for m in models if m.ByteSize() < 20_000]
    return (*small, *[make() for make in (recurrent, branching, looping) for _ in range(15)])


def test_damaged_fields_give_a_model_or_one_line() -> None:
    rng = np.random.default_rng(29)
    count, good, until = 0, 0, time.monotonic() + 25
    while count < LEAST or (count < MOST and time.monotonic() < until):
        model = damaged_model(seeds()[int(rng.integers(len(seeds())))], rng)
        good += accepted(lambda m=model: import_model(m))  # type: ignore[misc]
        count += 1
    assert 0.02 < good / count < 0.98


def test_damaged_files_give_a_model_or_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(31)
    path = tmp_path / "fuzz.onnx"
    files = [model.SerializeToString() for model in seeds()]
    count, good, until = 0, 0, time.monotonic() + 15
    while count < LEAST or (count < MOST and time.monotonic() < until):
        data, other = (files[int(i)] for i in rng.integers(len(files), size=2))
        path.write_bytes(damaged_bytes(data, other, rng))
        good += accepted(lambda: import_model(load_model(path)))
        count += 1
    assert 0 < good < count


def test_damaged_networks_give_a_model_or_one_line() -> None:
    rng = np.random.default_rng(37)
    for name in SMALL:
        model, _ = SMALL[name](3)
        for _ in range(8):
            damaged = damaged_model(model, rng)
            accepted(lambda m=damaged: import_model(m))  # type: ignore[misc]


def test_damaged_models_that_are_accepted_compile() -> None:
    rng = np.random.default_rng(41)
    until = time.monotonic() + 15
    compiled = 0
    while compiled <= 5 or (compiled < 60 and time.monotonic() < until):
        model = damaged_model(seeds()[int(rng.integers(len(seeds())))], rng)
        compiled += accepted(lambda m=model: compile_plain(from_proto(m)))  # type: ignore[misc]
