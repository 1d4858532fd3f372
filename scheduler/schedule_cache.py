"""The compilation cache: keeps emitted artifacts in memory and on disk, and schedules in memory.

    key in memory     graph (structure, weights, ONNX names), options, context
    key on disk       the same, source text of the compiler, versions of modeld, formats and numpy

The cache is not used under DEBUG, under VIZ, or if the context records stages.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Final, Generic, TypeVar

import numpy as np

from runtime.files.cache import EntryStore
from runtime.format.manifest import ABI, FORMAT
from runtime.format.plainpickle import PlainPickleError, decode, encode
from scheduler.context import CompileContext, Stages
from scheduler.debug.log import report
from scheduler.emit.artifact import Emitted, emit
from scheduler.emit.schedule import Schedule
from scheduler.errors import SchedulerError
from scheduler.ir.digest import canonical, graph_digest
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.loops.pack import PackedWeight
from scheduler.pipeline import schedule

logger = logging.getLogger(__name__)

# Memory limits, chosen by hand; beyond them the least recently used values are dropped.
MEMORY_BYTES: Final = 128 << 20
MEMORY_ENTRIES: Final = 256
# Size of a launch without its weights: nodes, indices, loops, text. Measured as 70 kB each on the
# 56 launches of 8 transformer blocks (`benchmarks.scheduler_speed`).
_LAUNCH_BYTES: Final = 70_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EntryGraph:
    """The arguments of `schedule` for one entry point."""

    outputs: Mapping[str, Node]  # nodes by name
    states: Sequence[Node] = ()  # ASSIGN nodes to perform
    inputs: Sequence[Node] | None = None  # in calling order; None for all that the graph reads
    origins: Origins = field(default_factory=Origins)  # ONNX names of the nodes

    def roots(self) -> list[tuple[str, Node]]:
        """Return every node that defines the entry, each with a description of its role."""
        found = [(f"output {name!r}", node) for name, node in self.outputs.items()]
        found += [(f"state {i}", node) for i, node in enumerate(self.states)]
        if self.inputs is not None:
            found += [(f"input {i} of {len(self.inputs)}", n) for i, n in enumerate(self.inputs)]
        return found

    def schedule(self, context: CompileContext) -> Schedule:
        """Compile to kernels; raise SchedulerError as `scheduler.pipeline.schedule` does."""
        if context.flags.is_watched:
            context = replace(context, stages=Stages())  # separate for each entry
        return schedule(self.outputs, self.states, self.inputs, context, self.origins)


class Lru(Generic[T]):
    """A least-recently-used cache, bounded by count and weight; safe to share between threads."""

    def __init__(self, entries: int, weight: int) -> None:
        self.max_entries, self.max_weight = entries, weight
        self.weight = 0
        self._values: OrderedDict[object, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: object) -> T | None:
        """Return a value and mark it as the most recently used."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: object, value: T, weight: int) -> None:
        """Store a value and drop the oldest beyond the limits; skip a value that is too heavy."""
        if weight > self.max_weight:
            return
        with self._lock:
            self.weight -= self._values.pop(key, (value, 0))[1]
            self._values[key] = (value, weight)
            self.weight += weight
            while len(self._values) > self.max_entries or self.weight > self.max_weight:
                self.weight -= self._values.popitem(last=False)[1][1]


# An `Emitted` as bytes (head, data), because callers may change the manifest that they get.
_Frozen = tuple[bytes, bytes]


def _freeze(made: Emitted) -> _Frozen:
    head = {"manifest": made.manifest, "arena_unplanned": made.arena_unplanned}
    return encode(head), made.data


def _thaw(frozen: _Frozen) -> Emitted:
    head, _ = decode(frozen[0])
    return Emitted(head["manifest"], frozen[1], head["arena_unplanned"])


class ScheduleCache:
    """A cache of emitted artifacts and schedules, in memory and optionally on disk."""

    def __init__(self, directory: Path | None = None) -> None:
        self._store = None if directory is None else EntryStore(directory, "schedule")
        self._emitted: Lru[_Frozen] = Lru(MEMORY_ENTRIES, MEMORY_BYTES)
        self._schedules: Lru[Schedule] = Lru(MEMORY_ENTRIES, MEMORY_BYTES)

    def emitted(
        self,
        entries: Mapping[str, EntryGraph],
        context: CompileContext,
        *,
        name: str,
        kind: str,
        options: str = "",
    ) -> Emitted:
        """Return what `compile_entries` returns, from the cache if possible; the caller owns it."""
        key = _request(entries, context, (name, kind, options))
        if key is None:
            return compile_entries(entries, context, name=name, kind=kind, options=options)
        known = self._emitted.get(key)
        if known is not None:
            logger.debug("%s: taken from memory", name)
            return _thaw(known)
        store = self._store
        on_disk = None if store is None else _disk_key(key)
        found = None if store is None or on_disk is None else _read(store, on_disk)
        if found is None:
            made = compile_entries(entries, context, name=name, kind=kind, options=options)
            head, data = frozen = _freeze(made)
            # The key is computed again, because source files can change during a compilation.
            if store is not None and on_disk is not None and _disk_key(key) == on_disk:
                store.put(on_disk, len(head).to_bytes(8, "little") + head + data)
        else:
            logger.debug("%s: taken from disk", name)
            frozen, made = found
        self._emitted.put(key, frozen, sum(map(len, frozen)))
        return made

    def schedule(self, graph: EntryGraph, context: CompileContext) -> Schedule:
        """Return the schedule of a graph, from the cache if its nodes are the identical objects."""
        if context.flags.is_watched:
            name = "-".join(graph.outputs) or "states"
            return compile_entries({"run": graph}, context, name=name, kind="plain").plans["run"]
        request = _request({"": graph}, context, ())
        if request is None:
            return graph.schedule(context)
        # Equal structure is not enough here, because the result refers to the caller's nodes.
        key = (request, tuple(node for _, node in graph.roots()))
        plan = self._schedules.get(key)
        if plan is None:
            plan = graph.schedule(context)
            self._schedules.put(key, plan, _bytes_of(graph, plan))
        return plan


def compile_entries(
    entries: Mapping[str, EntryGraph],
    context: CompileContext,
    *,
    name: str,
    kind: str,
    options: str = "",
) -> Emitted:
    """Schedule, lower and emit the named entries, and write the output for DEBUG and VIZ.

    States and weights that entries share are stored once. `kind` is "plain", "driving" or
    "monitoring". `options` are passed to the OpenCL compiler. Raises SchedulerError if a graph
    cannot be scheduled or lowered.
    """
    logger.debug("%s: compiled", name)
    plans = {entry: graph.schedule(context) for entry, graph in entries.items()}
    emitted = emit(plans, name=name, kind=kind, options=options)
    report(emitted.manifest, plans, context.flags)
    return emitted


def _bytes_of(graph: EntryGraph, plan: Schedule) -> int:
    """Return the bytes that a schedule keeps alive, including original and packed weights."""
    leaves = (n for n in toposort([n for _, n in graph.roots()]) if n.op is Op.BUFFER)
    given = sum(n.dtype.itemsize * prod(n.shape) for n in leaves if n.arg.kind == "weight")
    bound = {id(a): a for kernel in plan.lowered for a in kernel.arguments}
    packed = sum(a.data.nbytes for a in bound.values() if isinstance(a, PackedWeight))
    return len(plan.lowered) * _LAUNCH_BYTES + given + packed


# --- Keys -------------------------------------------------------------------------------------


def _request(
    entries: Mapping[str, EntryGraph], context: CompileContext, options: tuple[str, ...]
) -> str | None:
    """Return the key of a request, or None if its result must not be cached."""
    flags = context.flags
    if not flags.schedule_cache or flags.is_watched or context.stages is not None:
        return None
    roots = {
        f"{entry!r} {what}": node
        for entry, graph in entries.items()
        for what, node in graph.roots()
    }
    names = tuple((e, g.inputs is None, len(g.outputs)) for e, g in entries.items())
    try:
        graph = graph_digest(roots)
        named = tuple(graph_digest(dict(g.roots()), g.origins) for g in entries.values())
    except SchedulerError as error:
        logger.warning("schedules are not cached: %s", error)
        return None
    text = canonical((graph, named, names, options, context.key()))
    return hashlib.sha256(text.encode()).hexdigest()


def _disk_key(request: str) -> str | None:
    version = compiler_version()
    if version is None:
        return None
    return hashlib.sha256(f"{request} {version}".encode()).hexdigest()


_PACKAGE: Final = Path(__file__).parent
_SOURCES: Final = tuple(sorted(_PACKAGE.rglob("*.py")))


def _stamps() -> tuple[tuple[int, int], ...] | None:
    try:
        found = [path.stat() for path in _SOURCES]
    except OSError:
        return None
    return tuple((s.st_mtime_ns, s.st_size) for s in found)


# Recorded on import: source files that change later differ from the running code.
_LOADED: Final = _stamps()


def compiler_version() -> str | None:
    """Return a digest of the compiler's source text and of the versions it depends on.

    None if the source files are missing or have changed since the running code was loaded.
    """
    if not _SOURCES or _LOADED is None or _stamps() != _LOADED:
        return None
    return _version()


@functools.cache
def _version() -> str:
    digest = hashlib.sha256()
    for path in _SOURCES:
        text = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)} {len(text)}\n".encode())
        digest.update(text)
    try:
        package = importlib.metadata.version("modeld")
    except importlib.metadata.PackageNotFoundError:
        package = ""  # a source tree that is not installed
    # numpy folds constants, and other versions may round differently.
    digest.update(f"{package} {FORMAT} {ABI} {np.__version__}".encode())
    return digest.hexdigest()


# --- Disk -------------------------------------------------------------------------------------


def _read(store: EntryStore, key: str) -> tuple[_Frozen, Emitted] | None:
    """Return an entry from disk: 8 bytes for the length of the head, then head and data."""
    payload = store.get(key)
    if payload is None:
        return None
    end = 8 + int.from_bytes(payload[:8], "little")
    frozen = payload[8:end], payload[end:]
    try:
        return frozen, _thaw(frozen)
    except (PlainPickleError, KeyError, TypeError) as error:
        # The digest matched, so the entry is intact but another version wrote it.
        logger.warning(
            "%s/%s: not a valid schedule (%s); compiling again", store.directory, key, error
        )
        store.remove(key)
        return None
