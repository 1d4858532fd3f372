"""Converts schedules to the plain data of an artifact: programs, kernels, buffers, entry points.

Names come from content hashes and from counters in launch order, never from object identity, so
equal input gives equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.format.manifest import ABI, FORMAT
from scheduler.context import FAST
from scheduler.device.spec import DEFAULT
from scheduler.emit.megakernel import (
    LEAST_LAUNCHES,
    Function,
    is_callable,
    megakernel_source,
    origin_comment,
)
from scheduler.emit.schedule import Arena, Schedule, image_nodes, share_images
from scheduler.ir.dtype import DType
from scheduler.ir.node import Buffer, Node, storage_of
from scheduler.ir.ops import Op
from scheduler.kernelize.kernel import states_in_place
from scheduler.kernelize.memory_plan import ALIGNMENT, aligned
from scheduler.loops.images import Image, texel_bytes
from scheduler.loops.pack import PackedWeight
from scheduler.lower import LoweredKernel
from scheduler.render.kernel_code import KernelCode
from scheduler.render.prelude.prelude import prelude_of

# Several kernels share one start of the compiler, and several programs can be built in parallel.
KERNELS_PER_PROGRAM = 16


@dataclass(slots=True)
class Emitted:
    """The manifest fields that the compiler knows, and the weight data they refer to."""

    manifest: dict[str, Any]  # fields of an artifact, without those that only the caller knows
    data: bytes  # bytes of the weights
    arena_unplanned: int  # bytes of the largest entry's intermediates without reuse
    # schedules by entry name; empty if not kept
    plans: Mapping[str, Schedule] = field(default_factory=dict)


@dataclass(slots=True)
class _Kernel:
    """A kernel function, which several launches may share."""

    code: KernelCode  # the rendered code
    kind: str  # kind, as in `LoweredKernel`
    origins: list[str] = field(default_factory=list)  # ONNX nodes that its launches compute

    def text(self, name: str) -> str:
        """Return the kernel in C."""
        return self.code.definition(name)

    def facts(self, start: int, end: int) -> dict[str, Any]:
        """Return the manifest's description of the code, at these positions in its program."""
        needs = self.code.needs
        return {
            "kind": self.kind,
            "start": start,
            "end": end,
            "writes": len(self.code.storage),
            "float64": needs.float64,
            "local_bytes": needs.local_bytes,
            "image_reads": needs.image_reads,
            "gated_reads": needs.gated_reads,
            "image_writes": needs.image_writes,
        }


@dataclass(slots=True)
class _Writer:
    buffers: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    arena_size: int = 0
    arena_unplanned: int = 0
    host_clang: bool = True
    codes: dict[str, _Kernel] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    _by_buffer: dict[Buffer, int] = field(default_factory=dict)
    _by_digest: dict[bytes, int] = field(default_factory=dict)

    def buffer_of(self, buffer: Buffer) -> int:
        """Return the index of an input, state or unpacked weight."""
        if buffer not in self._by_buffer:
            if buffer.kind == "weight" and buffer.data is not None:
                self._by_buffer[buffer] = self.weight(buffer.data, buffer.name)
            else:
                # The file has only the size of a host buffer, no content.
                size = _stored_bytes(buffer.shape, buffer.dtype)
                entry = _entry(buffer.name, buffer.kind, buffer.dtype.name, buffer.shape, 0, size)
                if buffer.partial:
                    entry["partial"] = True
                if buffer.kind == "state":
                    # Zeros, which need no bytes in the file.
                    entry["reset"] = -1
                self._by_buffer[buffer] = self.add(entry)
        return self._by_buffer[buffer]

    def weight(self, data: NDArray[Any], name: str, image: Image | None = None) -> int:
        """Return the index of a weight; equal content is stored once."""
        raw = np.asarray(data, order="C").tobytes()
        # Equal bytes with another type or shape are separate buffers.
        form = f"{data.dtype}{data.shape}" + (f"{image}" if image is not None else "")
        digest = hashlib.sha256(form.encode() + raw).digest()
        if digest not in self._by_digest:
            # Offsets of OpenCL sub-buffers must be aligned.
            self.data.extend(b"\0" * (-len(self.data) % ALIGNMENT))
            entry = _entry(name, "weight", data.dtype.name, data.shape, len(self.data), len(raw))
            self.data.extend(raw)
            entry["name"] = name or f"w{len(self._by_digest)}"
            if image is not None:
                entry["image"] = [image.width, image.height]
            self._by_digest[digest] = self.add(entry)
        return self._by_digest[digest]

    def add(self, entry: dict[str, Any]) -> int:
        """Append a buffer and return its index."""
        self.buffers.append(entry)
        return len(self.buffers) - 1

    def kernel_name(self, kernel: LoweredKernel) -> str:
        """Return the name of a kernel's code; equal texts share one function."""
        # A content hash keeps the name stable between compilations.
        digest = hashlib.sha256(kernel.code.text.encode()).hexdigest()[:12]
        group = kernel.code.group
        name = f"{kernel.kind}_{digest}" + (f"_{group}" if group > 1 else "")
        known = self.codes.setdefault(name, _Kernel(kernel.code, kernel.kind))
        known.origins.extend(o for o in kernel.kernel.origin if o not in known.origins)
        return name

    def _function_of(self, name: str, kernel: LoweredKernel) -> int:
        """Return the number of a kernel's function in the megakernel, -1 if it has none."""
        if not is_callable(kernel):
            return -1
        # Launches of equal text share a function and its number.
        return self.functions.setdefault(name, len(self.functions))

    def entry(self, schedule: Schedule) -> dict[str, Any]:
        """Add one entry point and return its manifest form."""
        # Launches refer to buffers by index.
        place = self._place(schedule)
        launches = []
        for kernel in schedule.lowered:
            arguments = [
                self.weight(p.argument.data, "", p.image)
                if isinstance(p.argument, PackedWeight)
                else place[storage_of(p.argument)]
                for p in kernel.code.parameters
            ]
            launches.append(len(self.kernels))
            name = self.kernel_name(kernel)
            self.kernels.append(
                {
                    "name": name,
                    "program": 0,
                    "function": self._function_of(name, kernel),
                    "args": arguments,
                    "global": [kernel.code.launched, 1, 1],
                    "local": [kernel.code.group, 1, 1],
                    "origin": list(kernel.kernel.origin),
                    "flops": kernel.flops,
                    "bytes": kernel.kernel.bytes_moved,
                }
            )
        inputs = [self.buffer_of(buffer) for buffer in schedule.inputs]
        outputs = [place[node] for node in schedule.outputs.values()]
        return {"inputs": inputs, "outputs": outputs, "launches": launches}

    def _place(self, schedule: Schedule) -> dict[Node, int]:
        """Assign a buffer to every node of an entry; intermediates are in the arena."""
        place: dict[Node, int] = {}
        for name, node in schedule.outputs.items():
            size = _stored_bytes(node.shape, node.dtype)
            entry = _entry(name, "output", node.dtype.name, node.shape, 0, size)
            place[node] = self.add(entry)
        for kernel in schedule.lowered:
            read = (storage_of(a) for a in kernel.arguments if isinstance(a, Node))
            touched = [*kernel.storage, *read]
            for node in touched:
                if node.op is Op.BUFFER:
                    place[node] = self.buffer_of(node.arg)
        # An ASSIGN in place uses the storage of its state.
        for node, state in states_in_place(schedule.launches).items():
            place[node] = place[state]
        arena = schedule.arena()
        # Entries run one at a time, so they share one arena with the size of the largest.
        self.arena_size = max(self.arena_size, arena.size)
        self.arena_unplanned = max(self.arena_unplanned, arena.unplanned)
        for node, life in arena.lives.items():
            owner = arena.storage[node]
            if owner is node:
                kind, offset = node.dtype.name, arena.offsets[node]
                entry = _entry(f"t{life.first}", "arena", kind, node.shape, offset, life.size)
                place[node] = self.add(entry)
            # the same buffer, not another at its place: overlapping buffers are undefined in OpenCL
            else:
                place[node] = place[owner]
        self._place_images(schedule, arena, place)
        return place

    def _place_images(self, schedule: Schedule, arena: Arena, place: dict[Node, int]) -> None:
        """Assign an image to each intermediate in an image; equal sizes may share one."""
        images = image_nodes(schedule.lowered)
        for node, owner in share_images(images, arena.images).items():
            if owner is node:
                life, image = arena.images[node], images[node]
                size = image.width * image.height * texel_bytes(node.dtype)
                entry = _entry(f"t{life.first}", "image", node.dtype.name, node.shape, 0, size)
                place[node] = self.add({**entry, "image": [image.width, image.height]})
            else:
                place[node] = place[owner]

    def programs(self, options: str) -> list[dict[str, Any]]:
        """Group kernels into programs, record the position of each, and return the programs."""
        names = list(self.codes)
        # Positions are recorded while the source grows.
        found: dict[str, tuple[int, dict[str, Any]]] = {}
        result: list[dict[str, Any]] = []
        for start in range(0, len(names), KERNELS_PER_PROGRAM):
            group = names[start : start + KERNELS_PER_PROGRAM]
            codes = [self.codes[name].code for name in group]
            source = prelude_of(codes, host_clang=self.host_clang)
            for name in group:
                known = self.codes[name]
                source += origin_comment(known.origins)
                begin = len(source)
                source += known.text(name)
                found[name] = len(result), known.facts(begin, len(source))
            result.append({"source": source, "options": options, "binary": b""})
        for kernel in self.kernels:
            kernel["program"], facts = found[kernel["name"]]
            kernel["code"] = dict(facts)
        return result

    def megakernel(
        self, entries: Mapping[str, Mapping[str, Any]], programs: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Append the megakernel if the row supports it and it saves launches; return its entry."""
        most = max(
            (
                sum(self.kernels[i]["function"] >= 0 for i in e["launches"])
                for e in entries.values()
            ),
            default=0,
        )
        # Without a megakernel, no kernel has a function number.
        if most < LEAST_LAUNCHES or not self.host_clang:
            for kernel in self.kernels:
                kernel["function"] = -1
            return {}
        known = [(name, self.codes[name]) for name in self.functions]
        functions = [Function(name, kernel.code, kernel.origins) for name, kernel in known]
        options = programs[0]["options"]
        programs.append({"source": megakernel_source(functions), "options": options, "binary": b""})
        listed = [{"name": f.name, "args": len(f.code.parameters)} for f in functions]
        return {"program": len(programs) - 1, "functions": listed}


def _stored_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    """Return the bytes of a buffer; empty ones have one element, as OpenCL has no empty buffers."""
    return dtype.itemsize * max(prod(shape), 1)


def _entry(
    name: str, kind: str, dtype: str, shape: tuple[int, ...], offset: int, size: int
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "dtype": dtype,
        "shape": [int(s) for s in shape],
        "offset": offset,
        "size": size,
    }


def _precision_of(entries: Mapping[str, Schedule]) -> dict[str, Any]:
    """Return the fp16 report of each entry and the fp16 and sum rules, without the defaults."""
    reports = {e: s.precision.plain() for e, s in entries.items() if s.precision is not None}
    halves = next((s.halves for s in entries.values() if s.halves), "")
    numerics = next((s.numerics for s in entries.values() if s.numerics != FAST), "")
    facts = {"precision": reports, "halves": halves, "numerics": numerics}
    return {name: value for name, value in facts.items() if value}


def emit(entries: Mapping[str, Schedule], *, name: str, kind: str, options: str = "") -> Emitted:
    """Return the manifest and data of an artifact; the caller adds target, metadata and models.

    `entries` are schedules by name; their shared states and weights are stored once. `kind` is
    "plain", "driving" or "monitoring"; `options` are passed to the OpenCL compiler. Raises
    SchedulerError if an intermediate is never read (an internal error).
    """
    # All entries are compiled for one target.
    spec = next((s.spec for s in entries.values()), DEFAULT)
    writer = _Writer(host_clang=spec.host_clang)
    table = {entry: writer.entry(schedule) for entry, schedule in entries.items()}
    programs = writer.programs(options)
    megakernel = writer.megakernel(table, programs)
    manifest: dict[str, Any] = {
        "magic": "modeld-artifact",
        "format": FORMAT,
        "abi": ABI,
        "name": name,
        "kind": kind,
        "models": [],
        "metadata": _precision_of(entries),
        "target": {"name": spec.target, "device": "", "driver": "", "options": options},
        "buffers": writer.buffers,
        "arena_size": aligned(writer.arena_size) if writer.arena_size else 0,
        "programs": programs,
        "kernels": writer.kernels,
        "entries": table,
        "replay": megakernel,
        "self_test": {},
    }
    return Emitted(manifest, bytes(writer.data), writer.arena_unplanned, entries)
