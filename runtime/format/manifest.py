"""The manifest of an artifact: its typed form, and all checks that need no device.

`parse_manifest` turns a dictionary into a `Manifest` that can be trusted: each field has its type,
each index refers to an existing item, and each range is inside the data (weights and reset values)
or the arena (the memory of intermediates). docs/formats/artifact.md describes the format. numpy is
used only for the names of dtypes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from runtime.errors import ArtifactError
from runtime.format.parts import (
    Fields,
    ImageSpec,
    MegakernelSpec,
    TestVector,
    check_code,
    check_table,
    parse_function,
    parse_image,
    parse_lineage,
    parse_megakernel,
    parse_vectors,
)

MAGIC: Final = "modeld-artifact"
FORMAT: Final = 1  # version of the file's layout and the manifest's keys
ABI: Final = 1  # version of the kernel interface: argument order, buffers, meaning of entries
ALIGNMENT: Final = 256  # bytes; known devices have a CL_DEVICE_MEM_BASE_ADDR_ALIGN of at most this

KINDS: Final = ("plain", "driving", "monitoring")
BUFFER_KINDS: Final = ("input", "output", "weight", "state", "arena", "image")
PORT_KINDS: Final = ("input", "output")  # the caller's arrays, which may be empty
DTYPES: Final = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
MAX_BYTES: Final = 16 << 30  # one buffer, the arena or the data; no supported device has more
MAX_RANK: Final = 16
MAX_PORTS: Final = 4096  # inputs of one entry, and outputs of one entry
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One ONNX file from which the artifact was compiled."""

    role: str  # such as "vision" or "policy"
    file: str  # name of the file
    sha256: str
    checkpoint: str  # the training run that it comes from; "" if unknown


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The device that the artifact was compiled for. `device` and `driver` are as in DeviceInfo."""

    name: str  # name of the device row
    device: str
    driver: str
    options: str  # build options of its programs


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One device buffer. Its `kind` decides whether `offset` is into the arena or into the data."""

    name: str
    kind: str  # one of BUFFER_KINDS
    dtype: str  # one of DTYPES
    shape: tuple[int, ...]
    offset: int  # bytes
    size: int  # bytes, including padding
    reset: int  # state only: offset of the reset value in the data, -1 for zeros
    image: ImageSpec | None = None  # for the kind image, and for weights stored as images
    partial: bool = False  # input only: a run may provide only the first bytes

    @property
    def payload_bytes(self) -> int:
        """Size of the array itself, bytes. `size` may be larger (padding for vector access)."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """OpenCL source, its build options, and the device binary built from it (b"" for none)."""

    source: str
    options: str
    binary: bytes


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel function with its arguments and its index space."""

    name: str  # name of the kernel function
    program: int  # index in `Manifest.programs`
    args: tuple[int, ...]  # indices in `Manifest.buffers`, in parameter order
    global_size: tuple[int, int, int]  # number of work-items per dimension
    local_size: tuple[int, int, int]  # work-group size per dimension
    origin: tuple[str, ...]  # names of the ONNX nodes that it computes
    flops: int  # operations of one launch
    bytes_moved: int  # bytes that one launch reads and writes, each buffer once
    function: int  # index of its function in the megakernel, -1 if it has none
    writes: int  # number of written `args`, which come first


@dataclass(frozen=True, slots=True)
class EntrySpec:
    """One entry point: buffers written before it, buffers read after it, and its launches."""

    name: str
    inputs: tuple[int, ...]  # indices in `Manifest.buffers`
    outputs: tuple[int, ...]  # indices in `Manifest.buffers`
    launches: tuple[int, ...]  # indices in `Manifest.kernels`, in execution order


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checked manifest. `raw` is its dictionary. `self_test` and `lineage` may be empty."""

    name: str
    kind: str  # one of KINDS
    models: tuple[ModelSource, ...]
    metadata: dict[str, Any]  # data of the model for its users, such as its interface
    target: TargetSpec
    buffers: tuple[BufferSpec, ...]
    arena_size: int  # bytes
    programs: tuple[ProgramSpec, ...]
    kernels: tuple[KernelSpec, ...]
    entries: tuple[EntrySpec, ...]
    megakernel: MegakernelSpec | None
    self_test: tuple[TestVector, ...]
    lineage: dict[str, str]  # facts about the model's origin, by name
    data_size: int  # bytes
    raw: dict[str, Any]

    def entry(self, name: str) -> EntrySpec | None:
        """Return the entry named `name`, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)


def is_strict(metadata: Mapping[str, Any]) -> bool:
    """Return whether this program gives the same bytes on every CPU that it supports.

    `modeld compile --numerics strict` creates such programs (docs/numerics.md).
    """
    return bool(metadata.get("numerics") == "strict")


def check_identity(raw: object) -> None:
    """Check magic, format and ABI first, so that a newer artifact is not reported as damaged.

    Raises ArtifactError if `raw` is not a manifest, or its format or ABI is not supported.
    """
    top = Fields(raw, "manifest")
    if top.value.get("magic") != MAGIC:
        raise ArtifactError(f"manifest.magic: expected {MAGIC!r}; this is not a modeld artifact")
    for key, ours, what in (("format", FORMAT, "format"), ("abi", ABI, "runtime ABI")):
        found = top.get(key, int)
        if found != ours:
            age = "newer" if found > ours else "older"
            raise ArtifactError(
                f"it has {what} {found}, this version reads {ours}: it was written by a {age} "
                "modeld; compile the model again with this version"
            )


def parse_manifest(raw: object) -> Manifest:
    """Check a manifest dictionary completely and return its typed form.

    `sha256` and `data_size` may be missing only in `write_artifact`. Raises ArtifactError, which
    names the first field that is missing, has the wrong type or is out of range.
    """
    check_identity(raw)
    top = Fields(raw, "manifest")
    data_size = top.number("data_size", 0, MAX_BYTES)
    arena_size = top.number("arena_size", 0, MAX_BYTES)
    buffers = tuple(
        _parse_buffer(Fields(item, f"buffers[{index}]"), arena_size, data_size)
        for index, item in enumerate(top.items("buffers"))
    )
    programs = tuple(
        _parse_program(Fields(item, f"programs[{index}]"))
        for index, item in enumerate(top.items("programs"))
    )
    megakernel = parse_megakernel(top.value, len(programs))
    kernels = tuple(
        _parse_kernel(Fields(item, f"kernels[{index}]"), buffers, programs, megakernel)
        for index, item in enumerate(top.items("kernels"))
    )
    target = Fields(top.get("target", dict), "target")
    manifest = Manifest(
        name=top.text("name"),
        kind=top.choice("kind", KINDS),
        models=tuple(
            _parse_model(Fields(item, f"models[{index}]"))
            for index, item in enumerate(top.items("models", 64))
        ),
        metadata=top.get("metadata", dict),
        target=TargetSpec(*(target.text(key) for key in ("name", "device", "driver", "options"))),
        buffers=buffers,
        arena_size=arena_size,
        programs=programs,
        kernels=kernels,
        entries=_parse_entries(top.get("entries", dict), buffers, len(kernels)),
        megakernel=megakernel,
        self_test=(),
        lineage=parse_lineage(top),
        data_size=data_size,
        raw=top.value,
    )
    _check_names(manifest)
    manifest = replace(manifest, self_test=_parse_self_test(top, manifest))
    _check_data_ranges(manifest)
    _check_totals(manifest)
    return manifest


def _parse_self_test(top: Fields, manifest: Manifest) -> tuple[TestVector, ...]:
    states = {b.name: (b.shape, b.dtype) for b in manifest.buffers if b.kind == "state"}
    ports = {}
    for entry in manifest.entries:
        outputs = (manifest.buffers[index] for index in entry.outputs)
        ports[entry.name] = {
            "output": {b.name: (b.shape, b.dtype) for b in outputs},
            "state": states,
        }
    return parse_vectors(top.value, ports)


def _parse_model(fields: Fields) -> ModelSource:
    sha256 = fields.text("sha256")
    if not _SHA256.fullmatch(sha256):
        raise ArtifactError(f"{fields.where}.sha256: expected 64 lower-case hex digits")
    return ModelSource(fields.text("role"), fields.text("file"), sha256, fields.text("checkpoint"))


def _parse_buffer(fields: Fields, arena_size: int, data_size: int) -> BufferSpec:
    kind = fields.choice("kind", BUFFER_KINDS)
    size = fields.number("size", 1, MAX_BYTES)
    offset = fields.number("offset", 0, MAX_BYTES)
    reset = -1
    if kind == "state" and "reset" in fields.value:
        reset = fields.number("reset", -1, MAX_BYTES)
    spec = BufferSpec(
        name=fields.text("name"),
        kind=kind,
        dtype=fields.choice("dtype", DTYPES),
        shape=fields.numbers("shape", 0 if kind in PORT_KINDS else 1, MAX_BYTES, MAX_RANK),
        offset=offset,
        size=size,
        reset=reset,
        partial="partial" in fields.value and fields.get("partial", bool),
    )
    spec = replace(spec, image=parse_image(fields, kind, spec.dtype, size))
    where = f"{fields.where} ({kind} {spec.name[:80]!r})"
    if spec.payload_bytes > size:
        raise ArtifactError(
            f"{where}: shape {list(spec.shape)} of {spec.dtype} needs {spec.payload_bytes} bytes, "
            f"size is {size}"
        )
    if spec.partial and (kind != "input" or spec.dtype != "uint8" or len(spec.shape) != 1):
        raise ArtifactError(
            f"{where}: partial, expected an input of uint8 with one axis, found {kind} of "
            f"{spec.dtype}{list(spec.shape)}"
        )
    if kind in ("input", "output", "state", "image") and offset != 0:
        raise ArtifactError(f"{where}: offset {offset}, expected 0")
    limit, name = (arena_size, "arena") if kind == "arena" else (data_size, "data")
    start = reset if kind == "state" else offset
    placed = kind in ("arena", "weight") or reset >= 0
    if placed and start % ALIGNMENT:
        raise ArtifactError(f"{where}: offset {start} is not a multiple of {ALIGNMENT}")
    if placed and start + size > limit:
        raise ArtifactError(
            f"{where}: bytes {start}..{start + size} lie outside the {name} of {limit} bytes"
        )
    return spec


def _parse_program(fields: Fields) -> ProgramSpec:
    source = fields.text("source")
    if not source.strip() or "\0" in source:
        raise ArtifactError(f"{fields.where}.source: empty or with a NUL character")
    options = fields.text("options")
    if not options.isprintable():
        raise ArtifactError(f"{fields.where}.options: not one printable line")
    return ProgramSpec(source, options, fields.get("binary", bytes))


def _parse_kernel(
    fields: Fields,
    buffers: tuple[BufferSpec, ...],
    programs: tuple[ProgramSpec, ...],
    megakernel: MegakernelSpec | None,
) -> KernelSpec:
    name = fields.text("name")
    if not _IDENTIFIER.fullmatch(name):
        raise ArtifactError(f"{fields.where}.name: {name[:80]!r} is not a kernel name")
    origin = fields.items("origin")
    if any(type(item) is not str for item in origin):
        raise ArtifactError(f"{fields.where}.origin: expected a list of str")
    args = fields.numbers("args", 0, len(buffers) - 1, 1024)
    size = _parse_size(fields, "global", 2**40)
    program = fields.number("program", 0, len(programs) - 1)
    spec = KernelSpec(
        name=name,
        program=program,
        args=args,
        global_size=size,
        local_size=_parse_size(fields, "local", 2**16),
        origin=tuple(origin),
        flops=fields.number("flops", 0, 2**62),
        bytes_moved=fields.number("bytes", 0, 2**62),
        function=parse_function(
            fields, megakernel, size, [buffers[index].image is not None for index in args]
        ),
        writes=check_code(fields, programs[program].source, len(args)),
    )
    for extent, group in zip(spec.global_size, spec.local_size, strict=True):
        if extent % group:
            raise ArtifactError(
                f"{fields.where} ({name}): global {list(spec.global_size)} is not a multiple of "
                f"local {list(spec.local_size)}"
            )
    _check_arena_overlap([buffers[index] for index in spec.args], f"{fields.where} ({name})")
    return spec


def _parse_size(fields: Fields, key: str, high: int) -> tuple[int, int, int]:
    sizes = fields.numbers(key, 1, high)
    if len(sizes) != 3:
        raise ArtifactError(f"{fields.where}.{key}: {len(sizes)} dimensions, expected 3")
    return sizes[0], sizes[1], sizes[2]


def _check_arena_overlap(args: list[BufferSpec], where: str) -> None:
    """Check that arguments of one launch do not overlap; they may share a start (in place)."""
    arena = sorted((a for a in args if a.kind == "arena"), key=lambda a: (a.offset, a.size))
    for first, second in pairwise(arena):
        if first.offset != second.offset and second.offset < first.offset + first.size:
            raise ArtifactError(
                f"{where}: its arguments {first.name[:80]!r} and {second.name[:80]!r} overlap "
                "in the arena"
            )


def _parse_entries(
    raw: dict[str, Any], buffers: tuple[BufferSpec, ...], kernel_count: int
) -> tuple[EntrySpec, ...]:
    if not raw:
        raise ArtifactError("manifest.entries: empty, expected at least one entry")
    if len(raw) > 256:
        raise ArtifactError(f"manifest.entries: {len(raw)} entries, at most 256 expected")
    entries = []
    for name, item in raw.items():
        fields = Fields(item, f"entries[{name[:80]!r}]")
        entry = EntrySpec(
            name=name,
            inputs=fields.numbers("inputs", 0, len(buffers) - 1, MAX_PORTS),
            outputs=fields.numbers("outputs", 0, len(buffers) - 1, MAX_PORTS),
            launches=fields.numbers("launches", 0, kernel_count - 1),
        )
        for key, indices in (("input", entry.inputs), ("output", entry.outputs)):
            names = [buffers[index].name for index in indices]
            if len(set(names)) != len(names):
                raise ArtifactError(f"{fields.where}.{key}s: a name occurs twice")
            for index in indices:
                if buffers[index].kind != key:
                    raise ArtifactError(
                        f"{fields.where}.{key}s: buffer {index} is of kind {buffers[index].kind}"
                    )
        entries.append(entry)
    return tuple(entries)


def _check_names(manifest: Manifest) -> None:
    names = [buffer.name for buffer in manifest.buffers if buffer.kind == "state"]
    if len(set(names)) != len(names):
        raise ArtifactError("manifest.buffers: two state buffers have the same name")


def _check_data_ranges(manifest: Manifest) -> None:
    """Check that weights and reset values do not overlap, except when they share a start."""
    ranges = sorted(
        (b.reset if b.kind == "state" else b.offset, b.size, b.name)
        for b in manifest.buffers
        if b.kind == "weight" or b.reset >= 0
    )
    for (offset, size, name), (other, _, other_name) in pairwise(ranges):
        if other != offset and other < offset + size:
            raise ArtifactError(
                f"manifest.buffers: {name[:80]!r} and {other_name[:80]!r} overlap in the data"
            )


def _check_totals(manifest: Manifest) -> None:
    total = manifest.arena_size + manifest.data_size
    total += sum(
        b.size for b in manifest.buffers if b.kind in ("input", "output", "state", "image")
    )
    if total > MAX_BYTES:
        raise ArtifactError(f"it needs {total} bytes of device memory, at most {MAX_BYTES} allowed")
    launches = (manifest.kernels[index] for entry in manifest.entries for index in entry.launches)
    check_table(len(kernel.args) for kernel in launches if kernel.function >= 0)
