"""Makes the self-test of an artifact: expected results for seeded inputs and states.

    graph before any pass, numpy interpreter -> expected values -> manifest["self_test"]

The interpreter is independent of the tested passes, kernels and drivers. It needs 0.5 s for a run
of the driving models, so its results are cached next to the schedules. The runtime runs the test
when it loads an artifact (`runtime.run.selftest`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.files.cache import EntryStore, cache_dir
from runtime.format.parts import (
    SELF_TEST_RULE,
    ExpectedValues,
    TestVector,
    plain_self_test,
    positions,
)
from runtime.format.plainpickle import PlainPickleError, decode, encode
from runtime.run.entry import TensorSpec
from runtime.run.selftest import seeded_inputs, seeded_states
from scheduler.check.outputs import Rounding, rounding_of, tolerance_of
from scheduler.compile import CompiledModel
from scheduler.errors import SchedulerError
from scheduler.ir.digest import graph_digest
from scheduler.ir.interp import evaluate
from scheduler.ir.node import Buffer, Node, toposort
from scheduler.ir.ops import Op
from scheduler.schedule_cache import EntryGraph, compiler_version

Array = NDArray[Any]

# Seeds of the first entry and of every other entry. The runtime runs the entry once for each seed
# when it loads an artifact. On the device, these runs take less time than three frames.
SEEDS: Final = (1, 2)
OTHER_SEEDS: Final = (3,)
# Limits in floating-point operations of a run; numpy does 2 to 10 per nanosecond. Above the first
# limit there is one seed, above the second no self-test. The driving models need less than 2e9.
ONE_SEED_FLOPS: Final = 20e9
MOST_FLOPS: Final = 200e9
# Roundings from fine to coarse.
_ROUNDINGS: Final = (Rounding.FLOAT, Rounding.HALF, Rounding.QUANTISED)


class _NoVectorsError(Exception):
    """The model cannot have a self-test; the message is the reason."""


def with_self_test(compiled: CompiledModel, *, keep: bool = True) -> CompiledModel:
    """Return a compiled model with its self-test, or with a note if it cannot have one.

    The model must not have binaries yet, because those are taken from a program that passes the
    test. `keep` allows the use of the cache.
    """
    try:
        made = _cached(compiled) if keep else _made(compiled)
    except _NoVectorsError as reason:
        note = f"no self-test: {reason}"
        return replace(compiled, notes=(*compiled.notes, note))
    return replace(compiled, manifest={**compiled.manifest, "self_test": made})


def _cached(compiled: CompiledModel) -> dict[str, Any]:
    """Return the self-test from the cache, or make and cache it."""
    version = compiler_version()
    if version is None:
        return _made(compiled)
    digests = [f"{name} {graph_digest(dict(g.roots()))}" for name, g in compiled.graphs.items()]
    text = f"{SELF_TEST_RULE} {version} {_rounding(compiled)} {_flops(compiled)} {digests}"
    key = hashlib.sha256(text.encode()).hexdigest()
    store = EntryStore(cache_dir() / "selftests", "self-test")
    known = store.get(key)
    if known is not None:
        try:
            return dict(decode(known)[0])
        except (PlainPickleError, TypeError, ValueError):
            store.remove(key)
    made = _made(compiled)
    store.put(key, encode(made))
    return made


def _made(compiled: CompiledModel) -> dict[str, Any]:
    """Return the self-test of a model, or raise _NoVectorsError."""
    flops = _flops(compiled)
    if flops > MOST_FLOPS:
        raise _NoVectorsError(
            f"a run takes {flops:.1e} operations, more than the {MOST_FLOPS:.0e} allowed without "
            "a device"
        )
    rounding = _rounding(compiled)
    vectors = []
    for number, (entry, graph) in enumerate(compiled.graphs.items()):
        seeds = OTHER_SEEDS if number else SEEDS[:1] if flops > ONE_SEED_FLOPS else SEEDS
        vectors += [_vector(entry, graph, seed, rounding) for seed in seeds]
    return plain_self_test(tuple(vectors))


def _flops(compiled: CompiledModel) -> int:
    """Return the number of floating-point operations of a run of the largest entry."""
    manifest = compiled.manifest
    flops = [int(kernel["flops"]) for kernel in manifest["kernels"]]
    launches: list[list[int]] = [entry["launches"] for entry in manifest["entries"].values()]
    return max(sum(flops[i] for i in listed) for listed in launches)


def _rounding(compiled: CompiledModel) -> Rounding:
    """Return the coarsest rounding inside any of the models."""
    halves = bool(compiled.manifest["metadata"].get("precision"))
    found = [rounding_of(model, stores_halves=halves)[0] for model in compiled.sources]
    return max(found, key=_ROUNDINGS.index, default=Rounding.FLOAT)


def _vector(entry: str, graph: EntryGraph, seed: int, rounding: Rounding) -> TestVector:
    """Return the expected outputs and states of an entry for one seed."""
    roots = [*graph.outputs.values(), *graph.states]
    expected = []
    for (kind, name), value in zip(
        [
            *(("output", name) for name in graph.outputs),
            *(("state", _state_of(node).name) for node in graph.states),
        ],
        _evaluated(entry, roots, seed),
        strict=True,
    ):
        values = value.reshape(-1)[positions(value.size)]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise _NoVectorsError(
                f'{kind} "{name}" of entry {entry} is not finite for inputs near N(0, 1)'
            )
        tolerance, share = _tolerance(values.dtype, rounding)
        expected.append(ExpectedValues(kind, name, value.shape, values, tolerance, share))
    return TestVector(seed, entry, tuple(expected))


def _tolerance(dtype: np.dtype[Any], rounding: Rounding) -> tuple[float, float]:
    """Return the tolerance of a value, and the share of values that may exceed it.

    They are the same as for `--verify`.
    """
    allowed = tolerance_of(dtype, rounding)
    if dtype.kind == "f":
        # In a deep network that quantizes, a few elements can deviate by more than the tolerance.
        quantised = rounding is Rounding.QUANTISED
        return allowed, tolerance_of(np.dtype(np.int32), rounding) if quantised else 0.0
    # A value rounded to 8 bits can be one step off, and a few comparisons can come out differently.
    return (1.0 if dtype.itemsize == 1 and dtype.kind in "iu" else 0.0), allowed


def _state_of(node: Node) -> Buffer:
    """Return the state that an ASSIGN writes, possibly through earlier ASSIGNs."""
    while node.op is not Op.BUFFER:
        node = node.src[0]
    buffer: Buffer = node.arg
    return buffer


def _evaluated(entry: str, roots: list[Node], seed: int) -> list[Array]:
    """Return the values of nodes for seeded inputs and states, computed by the interpreter."""
    found = {n.arg for n in toposort(roots) if n.op is Op.BUFFER and n.arg.data is None}
    ports = {
        buffer: TensorSpec(buffer.name, buffer.shape, buffer.dtype.np, buffer.partial)
        for buffer in sorted(found, key=lambda b: b.serial)
    }
    inputs = seeded_inputs([p for b, p in ports.items() if b.kind == "input"], seed)
    states = seeded_states([p for b, p in ports.items() if b.kind == "state"], seed)
    given: Mapping[Buffer, Array] = {
        b: inputs[b.name] if b.kind == "input" else states[b.name]
        for b in ports
        if b.kind in ("input", "state")
    }
    try:
        return evaluate(roots, given)
    except (SchedulerError, IndexError, ValueError, MemoryError) as error:
        # Examples: a kernel without a reference, or an index out of range for seeded values.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _NoVectorsError(f"entry {entry} cannot be computed without a device: {reason}") from (
            error
        )
