"""Damaged models by the thousand: each gives a model or one clear line, in time and memory."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from scheduler.compile import compile_plain
from scheduler.errors import SchedulerError, UnsupportedOpError
from scheduler.onnx_import import from_proto, import_model, load_model
from tests.scheduler.onnx_import.model_mutations import damaged_bytes, damaged_model
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.test_control import IF, LOOP, SCAN, SEQUENCES, WHILE, model
from tests.scheduler.onnx_import.test_networks import SMALL
from tests.scheduler.onnx_import.test_ops import build

SECONDS = 20  # for one model; the machine may be busy
MEMORY_BYTES = 1 << 30
MESSAGE = 400
OPERATOR_CASES = 300


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


@cache
def seeds() -> tuple[onnx.ModelProto, ...]:
    """Models to damage: operators of every theme, graphs inside of nodes, sequences."""
    rng = np.random.default_rng(17)
    picked = [CASES[i] for i in rng.permutation(len(CASES))[:OPERATOR_CASES]]
    models = [build(case, folded=bool(i % 4 == 0))[0] for i, case in enumerate(picked)]
    small = [m for m in models if m.ByteSize() < 20_000]
    nested = [model(text) for text in (IF, WHILE, SCAN, SEQUENCES)]
    return (*small, *[*nested, model(LOOP, n=np.array(3))] * 9)


def damaged_seed(rng: np.random.Generator) -> onnx.ModelProto:
    return damaged_model(seeds()[int(rng.integers(len(seeds())))], rng)


def share_accepted(count: int, run: Callable[[], object]) -> float:
    return sum(accepted(run) for _ in range(count)) / count


def few_and(many: int, few: int) -> pytest.MarkDecorator:
    counts = [few, pytest.param(many, marks=pytest.mark.slow)]
    return pytest.mark.parametrize("count", counts)


@few_and(2500, 100)
def test_damaged_fields_give_a_model_or_one_line(count: int) -> None:
    rng = np.random.default_rng(29)
    assert 0.02 < share_accepted(count, lambda: import_model(damaged_seed(rng))) < 0.98


@few_and(2500, 100)
def test_damaged_files_give_a_model_or_one_line(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(31)
    path = tmp_path / "fuzz.onnx"
    files = [model.SerializeToString() for model in seeds()]

    def read() -> None:
        data, other = (files[int(i)] for i in rng.integers(len(files), size=2))
        path.write_bytes(damaged_bytes(data, other, rng))
        import_model(load_model(path))

    assert 0 < share_accepted(count, read) < 1


@few_and(40, 5)
def test_damaged_networks_give_a_model_or_one_line(count: int) -> None:
    rng = np.random.default_rng(37)
    for name in SMALL:
        model, _ = SMALL[name](3)
        share_accepted(count // 5, lambda m=model: import_model(damaged_model(m, rng)))  # type: ignore[misc]


@few_and(60, 3)
def test_damaged_models_that_are_accepted_compile(count: int) -> None:
    rng = np.random.default_rng(41)
    compiled = 0
    while compiled < count:
        compiled += accepted(lambda: compile_plain(from_proto(damaged_seed(rng))))
