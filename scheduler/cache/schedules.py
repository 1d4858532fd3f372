"""What was compiled before is not compiled again: kept in memory, and artifacts also on disk.

    key = graph (structure, weights, ONNX names), precision, options, device, flags     in memory
          + source text of the compiler + versions                             on disk

A changed compiler has another source text, so it never meets its old results. Whoever watches the
compiler at work (DEBUG, VIZ, an observer) sees it work: then nothing is taken from here.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final, Generic, TypeVar

import numpy as np

from runtime.cache_dir import cache_dir
from runtime.entry_store import EntryStore
from runtime.manifest import ABI, FORMAT
from runtime.plainpickle import PlainPickleError, decode, encode
from scheduler import flags
from scheduler.debug import trace
from scheduler.device import spec as device_spec
from scheduler.device import tuned_table
from scheduler.emit.artifact import Emitted, emit
from scheduler.errors import SchedulerError
from scheduler.ir.digest import canonical, graph_digest
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.passes.precision import FP32
from scheduler.pipeline import Schedule, schedule

logger = logging.getLogger(__name__)

MEMORY_BYTES: Final = 128 << 20
MEMORY_ENTRIES: Final = 256
# What a schedule without weights takes: nodes, indices, text of its kernels.
_SCHEDULE_BYTES: Final = 1 << 20
# Variables that change what is said about the work, not its result.
_WATCHING: Final = frozenset({flags.DEBUG, flags.VIZ, flags.SCHEDULE_CACHE})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EntryGraph:
    """What `schedule` is asked for, for one entry point.

    Attributes:
        outputs: nodes by name.
        states: ASSIGN nodes to perform.
        inputs: input BUFFER nodes in calling order; None for those the graph reads.
        precision: "fp32" or "fp16", as for `schedule`.
        origins: ONNX names of the nodes.
    """

    outputs: Mapping[str, Node]
    states: Sequence[Node] = ()
    inputs: Sequence[Node] | None = None
    precision: str = FP32
    origins: Origins = field(default_factory=Origins)

    def roots(self) -> list[tuple[str, Node]]:
        """Return everything that defines the entry, each with what it is."""
        found = [(f"output {name!r}", node) for name, node in self.outputs.items()]
        found += [(f"state {i}", node) for i, node in enumerate(self.states)]
        if self.inputs is not None:
            found += [(f"input {i} of {len(self.inputs)}", n) for i, n in enumerate(self.inputs)]
        return found

    def schedule(self) -> Schedule:
        """Compile it to kernels.

        Raises:
            SchedulerError: as `scheduler.pipeline.schedule`.
        """
        return schedule(
            self.outputs,
            self.states,
            self.inputs,
            precision=self.precision,
            origins=self.origins,
        )


class Lru(Generic[T]):
    """The values used last, bounded by count and by weight; safe to share between threads."""

    def __init__(self, entries: int, weight: int) -> None:
        self.max_entries, self.max_weight = entries, weight
        self.weight = 0
        self._values: OrderedDict[object, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: object) -> T | None:
        """Return a value, which is then the one used last."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: object, value: T, weight: int) -> None:
        """Keep a value and drop the oldest ones beyond the bounds; a too heavy one is not kept."""
        if weight > self.max_weight:
            return
        with self._lock:
            self.weight -= self._values.pop(key, (value, 0))[1]
            self._values[key] = (value, weight)
            self.weight += weight
            while len(self._values) > self.max_entries or self.weight > self.max_weight:
                self.weight -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._values.clear()
            self.weight = 0


@dataclass(frozen=True, slots=True)
class _Frozen:
    """An `Emitted` as bytes: whoever gets one may change its manifest."""

    head: bytes
    data: bytes

    @classmethod
    def of(cls, emitted: Emitted) -> _Frozen:
        head = {"manifest": emitted.manifest, "arena_unplanned": emitted.arena_unplanned}
        return cls(encode(head), emitted.data)

    @classmethod
    def read(cls, payload: bytes) -> _Frozen:
        size = int.from_bytes(payload[:8], "little")
        return cls(payload[8 : 8 + size], payload[8 + size :])

    def written(self) -> bytes:
        return len(self.head).to_bytes(8, "little") + self.head + self.data

    def thaw(self) -> Emitted:
        head, _ = decode(self.head)
        return Emitted(head["manifest"], self.data, head["arena_unplanned"])


_emitted: Lru[_Frozen] = Lru(MEMORY_ENTRIES, MEMORY_BYTES)
_schedules: Lru[Schedule] = Lru(MEMORY_ENTRIES, MEMORY_BYTES)


def emitted_for(
    entries: Mapping[str, EntryGraph], *, name: str, kind: str, options: str = "", disk: bool = True
) -> Emitted:
    """Schedule, lower and emit entries, or return what that gave before; the caller owns it.

    Args:
        entries: by entry name; states and weights they share are stored once.
        name: model name.
        kind: "plain" or "driving".
        options: OpenCL build options.
        disk: whether to look on disk and to leave it there; memory alone is for graphs that only
            this process will ask for.

    Raises:
        SchedulerError: a graph cannot be scheduled or lowered.
    """
    key = None if _is_watched() else _request(entries, (name, kind, options))
    if key is None:
        return _compile(entries, name, kind, options)
    known = _emitted.get(key)
    if known is not None:
        logger.debug("%s: taken from memory", name)
        return known.thaw()
    on_disk = _disk_key(key) if disk else None
    found = _read(on_disk) if on_disk is not None else None
    if found is None:
        made = _compile(entries, name, kind, options)
        frozen = _Frozen.of(made)
        if on_disk is not None and _disk_key(key) == on_disk:
            _store().put(on_disk, frozen.written())
    else:
        logger.debug("%s: taken from disk", name)
        frozen, made = found
    _emitted.put(key, frozen, len(frozen.head) + len(frozen.data))
    return made


def schedule_for(graph: EntryGraph) -> Schedule:
    """Return the schedule of a graph, the one made before if the very same nodes were asked for.

    Plain observers are told of a schedule that is taken again; a Recorder, DEBUG and VIZ want to
    see how it comes about, so for them it is made again.

    Raises:
        SchedulerError: the graph cannot be scheduled.
    """
    if flags.debug() or flags.viz("") is not None or trace.is_recorded():
        return graph.schedule()
    request = _request({"": graph}, ())
    if request is None:
        return graph.schedule()
    # Equal structure is not enough here: the result holds nodes, the caller's own.
    key = (request, tuple(node for _, node in graph.roots()))
    plan = _schedules.get(key)
    if plan is not None:
        logger.debug("%s: taken from memory", ", ".join(graph.outputs))
        trace.scheduled(plan)
        return plan
    plan = graph.schedule()
    _schedules.put(key, plan, _SCHEDULE_BYTES + _weight_bytes(graph))
    return plan


def clear_memory() -> None:
    """Forget what is kept in memory; what is on disk stays."""
    _emitted.clear()
    _schedules.clear()


def _compile(entries: Mapping[str, EntryGraph], name: str, kind: str, options: str) -> Emitted:
    logger.debug("%s: compiled", name)
    plans = {entry: graph.schedule() for entry, graph in entries.items()}
    return emit(plans, name=name, kind=kind, options=options)


def _is_watched() -> bool:
    return bool(flags.debug()) or flags.viz("") is not None or trace.is_watched()


def _weight_bytes(graph: EntryGraph) -> int:
    leaves = (n for n in toposort([n for _, n in graph.roots()]) if n.op is Op.BUFFER)
    return sum(n.dtype.itemsize * prod(n.shape) for n in leaves if n.arg.kind == "weight")


# --- keys ---------------------------------------------------------------------------------------


def _request(entries: Mapping[str, EntryGraph], options: tuple[str, ...]) -> str | None:
    """Return the key of a request; None where nothing may be kept."""
    if not flags.schedule_cache():
        return None
    roots = {
        f"{entry!r} {what}": node
        for entry, graph in entries.items()
        for what, node in graph.roots()
    }
    names = tuple((e, g.inputs is None, len(g.outputs), g.precision) for e, g in entries.items())
    spec = device_spec.current()
    try:
        graph = graph_digest(roots)
        named = tuple(graph_digest(dict(g.roots()), g.origins) for g in entries.values())
    except SchedulerError as error:
        logger.warning("schedules are not cached: %s", error)
        return None
    tuned = tuned_table.current().digest
    text = canonical((graph, named, names, options, spec.key(), tuned, _flags_in_force()))
    return hashlib.sha256(text.encode()).hexdigest()


def _flags_in_force() -> tuple[tuple[str, str], ...]:
    """Return the compiler's variables that may change its result; new ones enter by themselves."""
    environment = dict(os.environ)
    names = sorted(f.name for f in flags.FLAGS if f.name not in _WATCHING)
    found = tuple((name, environment.get(name, "").strip()) for name in names)
    # What can be set without the environment.
    return (*found, ("float_unsafe", str(flags.float_unsafe())))


def _disk_key(request: str) -> str | None:
    version = compiler_version()
    if version is None:
        return None
    return hashlib.sha256(f"{request} {version}".encode()).hexdigest()


_PACKAGE: Final = Path(__file__).parents[1]
_SOURCES: Final = tuple(sorted(_PACKAGE.rglob("*.py")))


def _stamps() -> tuple[tuple[int, int], ...] | None:
    try:
        found = [path.stat() for path in _SOURCES]
    except OSError:
        return None
    return tuple((s.st_mtime_ns, s.st_size) for s in found)


# Taken when the compiler is loaded: source text that changed later is not what is running.
_LOADED: Final = _stamps()


def compiler_version() -> str | None:
    """Return the digest of this compiler's source text and of the versions beside it.

    None where the text is not that of the running code: it has changed since, or is not there.
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
    # numpy folds constants: other versions may round differently.
    digest.update(f"{package} {FORMAT} {ABI} {np.__version__}".encode())
    return digest.hexdigest()


# --- disk ---------------------------------------------------------------------------------------


def _store() -> EntryStore:
    return EntryStore(cache_dir() / "schedules", "schedule")


def _read(key: str) -> tuple[_Frozen, Emitted] | None:
    store = _store()
    payload = store.get(key)
    if payload is None:
        return None
    frozen = _Frozen.read(payload)
    try:
        return frozen, frozen.thaw()
    except (PlainPickleError, KeyError, TypeError) as error:
        # The digest was right, so this was written so: not by this version.
        logger.warning("%s/%s: no schedule (%s); making it again", store.directory, key, error)
        store.remove(key)
        return None
