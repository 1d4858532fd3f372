"""Hand-written artifacts for the tests: small kernels whose results can be computed by hand."""

import copy
import dataclasses
import functools
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from runtime.format.artifact import from_memory, write_artifact
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program, load_program
from scheduler.emit.megakernel import Function, megakernel_source
from scheduler.render.kernel_code import KernelCode, Needs, Parameter
from scheduler.tensor.tensor import Tensor

# PoCL compiles a kernel again for each work-group size it meets, unless the source fixes it.
ONE = "#define ONE __attribute__((reqd_work_group_size(1, 1, 1)))\n"
# The queue holds the last three values of `x`, newest last; `run` returns
# 2 * (queue[0] + queue[1] + queue[2]) + weight, and the first half of the frame's bytes added up.
SOURCE = (
    ONE
    + """
__kernel ONE void shift(__global float* queue, const __global float* x) {
  for (int i = 0; i < 4; i++) {
    queue[i] = queue[4 + i];
    queue[4 + i] = queue[8 + i];
    queue[8 + i] = x[i];
  }
}
__kernel ONE void sum(__global float* total, const __global float* queue) {
  const int i = get_global_id(0);
  total[i] = queue[i] + queue[4 + i] + queue[8 + i];
}
__kernel ONE void double_it(__global float* twice, const __global float* total) {
  const int i = get_global_id(0);
  twice[i] = 2.0f * total[i];
}
"""
)
# A second program, so that there is more than one cache entry.
SOURCE_2 = (
    ONE
    + """
__kernel ONE void add_weight(__global float* y, const __global float* twice,
                         const __global float* weight) {
  const int i = get_global_id(0);
  y[i] = twice[i] + weight[i];
}
__kernel ONE void add_bytes(__global int* count, const __global uchar* frame) {
  int sum = 0;
  for (int i = 0; i < 50; i++) sum += frame[i];
  count[0] = sum;
}
"""
)
WEIGHT = np.array([10, 20, 30, 40], np.float32)
QUEUE_RESET = np.arange(12, dtype=np.float32)

X, FRAME, Y, COUNT, WEIGHTS, QUEUE, TOTAL, TWICE = range(8)


def data_blob() -> bytes:
    """The weight at 0, the queue's reset value at 256."""
    return WEIGHT.tobytes().ljust(256, b"\0") + QUEUE_RESET.tobytes()


def buffer(name: str, kind: str, dtype: str, *shape: int, **more: Any) -> dict[str, Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    about = {"name": name, "kind": kind, "dtype": dtype, "shape": list(shape)}
    return {**about, "offset": 0, "size": size, **more}


def kernel(name: str, extent: int, *args: int, program: int = 0, **more: Any) -> dict[str, Any]:
    about = {"name": name, "program": program, "args": list(args), "origin": [f"/{name}"]}
    sizes = {"global": [extent, 1, 1], "local": [1, 1, 1]}
    return {**about, **sizes, "flops": 4 * extent, "bytes": 16 * extent, **more}


def program(source: str, options: str = "") -> dict[str, Any]:
    return {"source": source, "options": options, "binary": b""}


def manifest(**changes: Any) -> dict[str, Any]:
    """Entries `run` (queue, sum, weight) and `prepare` (queue only); `reset_to` is never touched.

    The state `queue` resets to zeros. Change fields with keyword arguments.
    """
    model = {"role": "model", "file": "tiny.onnx", "sha256": "0" * 64, "checkpoint": "none"}
    run = {"inputs": [X, FRAME], "outputs": [Y, COUNT], "launches": [0, 1, 2, 3, 4]}
    raw = {
        "magic": "modeld-artifact", "format": 1, "abi": 1, "name": "tiny", "kind": "plain",
        "models": [model], "metadata": {},
        "target": {"name": "cpu", "device": "", "driver": "", "options": ""},
        "buffers": [
            buffer("x", "input", "float32", 4),
            buffer("frame", "input", "uint8", 100),
            buffer("y", "output", "float32", 4),
            buffer("count", "output", "int32", 1),
            buffer("weight", "weight", "float32", 4),
            buffer("queue", "state", "float32", 3, 4, reset=-1),
            buffer("total", "arena", "float32", 4),
            buffer("twice", "arena", "float32", 4, offset=256),
        ],
        "arena_size": 512, "programs": [program(SOURCE), program(SOURCE_2, "-cl-mad-enable")],
        "kernels": [
            kernel("shift", 1, QUEUE, X),
            kernel("sum", 4, TOTAL, QUEUE),
            kernel("double_it", 4, TWICE, TOTAL),
            kernel("add_weight", 4, Y, TWICE, WEIGHTS, program=1),
            kernel("add_bytes", 1, COUNT, FRAME, program=1),
        ],
        "entries": {"run": run, "prepare": {"inputs": [X], "outputs": [], "launches": [0]}},
        "self_test": {},
    }  # fmt: skip
    return copy.deepcopy({**raw, **changes})


@functools.cache
def _functions() -> tuple[tuple[Function, ...], str]:
    """The kernels as functions of a megakernel, and its source."""
    pattern = re.compile(r"__kernel ONE void (\w+)\((.*?)\) (\{.*?\n\}\n)", re.DOTALL)
    found = pattern.findall(SOURCE + SOURCE_2)
    functions = tuple(Function(name, _code(given, body)) for name, given, body in found)
    return functions, megakernel_source(functions)


def _code(declarations: str, body: str) -> KernelCode:
    pairs = [declaration.split()[::-1] for declaration in declarations.split(",")]
    node = Tensor.input("any", (1,)).node
    parameters = [Parameter(n, " ".join(t[::-1]), node, "const" not in t) for n, *t in pairs]
    return KernelCode(tuple(parameters), body, 1, (1,), Needs())


def megakernel_manifest(**changes: Any) -> dict[str, Any]:
    """The same with a megakernel, number 2: a CPU runs each entry as one launch."""
    raw = manifest()
    functions, source = _functions()
    raw["programs"].append(program(source))
    listed = [{"name": f.name, "args": len(f.code.parameters)} for f in functions]
    raw["replay"] = {"program": 2, "functions": listed}
    for number, entry in enumerate(raw["kernels"]):
        entry["function"] = number
    return {**raw, **changes}


def write(path: Path, **changes: Any) -> Path:
    write_artifact(path, manifest(**changes), data_blob())
    return path


def inputs(value: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    """`x` is `value` times (1, 2, 3, 4); the frame counts 0..99, its first 50 add up to 1225."""
    return {
        "x": value * np.array([1, 2, 3, 4], np.float32),
        "frame": np.arange(100, dtype=np.uint8),
    }


def load(path: Path, **changes: Any) -> Program:
    return load_program(write(path, **changes))


def on_cpu(raw: dict[str, Any], **info: Any) -> Program:
    """Return a program on the CPU, of which `info` may say something else than is true.

    `platform="another"` is a device whose memory the host cannot touch, and that does not replay.
    """
    device = choose_device("cpu")
    changed = dataclasses.replace(device, info=dataclasses.replace(device.info, **info))
    return Program(from_memory(raw, data_blob()), changed, shared_cache(device))


GONE = object()


def altered(raw: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with values put at paths such as "buffers/0/dtype", or taken away.

    "buffers/+" appends.
    """
    for path, value in changes.items():
        *parents, last = path.split("/")
        node: Any = raw
        for key in parents:
            node = node[int(key) if isinstance(node, list) else key]
        if value is GONE:
            del node[last]
        elif last == "+":
            node.append(value)
        else:
            node[int(last) if isinstance(node, list) else last] = value
    return raw


def collected(memory: weakref.ref[Any]) -> bool:
    """Return whether nobody keeps this any more."""
    gc.collect()
    return memory() is None
