"""Compiles an ONNX model with tinygrad for an Adreno 630, and prints what it would launch.

    FLOAT16=1 python -m benchmarks.tinygrad_ir3 MODEL.onnx LAUNCHES.json

Nothing is run: tinygrad's `NULL` device compiles with Mesa's ir3 (package tinymesa) as it would for
the device. What depends on inputs is recorded, as openpilot does, so weights that are packed once
do not count. The compiler's own printer writes the code, as it does for ours.

`benchmarks.adreno_peers` starts it with the environment that tinygrad reads when it is imported.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import numpy_helper

# Arrays that may be shapes, axes or indices; larger ones are weights, whose values decide nothing.
MAX_CONSTANT: Final = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the launches of a model as JSON; any error of tinygrad's is raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args(arguments)
    codes = _Codes()
    launches = [codes.launch(program) for program in _programs(args.model)]
    versions = {name: metadata.version(name) for name in ("tinygrad", "tinymesa")}
    found = {"versions": versions, "launches": launches, "codes": codes.texts}
    args.output.write_text(json.dumps(found), encoding="utf-8")
    return 0


class _Codes:
    """Keeps the code of each kernel that tinygrad compiles from now on."""

    def __init__(self) -> None:
        from tinygrad.runtime.autogen import mesa
        from tinygrad.runtime.support.compiler_mesa import IR3Compiler

        self.texts: list[str] = []
        self._numbers: dict[bytes, int] = {}
        assemble, compiled = mesa.ir3_shader_assemble, IR3Compiler.compile

        def assembling(variant: Any) -> Any:
            code = assemble(variant)
            self.texts.append(_printed(mesa, variant, code))
            return code

        def compiling(compiler: Any, source: str) -> bytes:
            binary: bytes = compiled(compiler, source)
            self._numbers[binary] = len(self.texts) - 1
            return binary

        mesa.ir3_shader_assemble = assembling
        IR3Compiler.compile = compiling

    def launch(self, program: Any) -> dict[str, Any]:
        """Return the plain form of a launch."""
        from tinygrad.uop.ops import Ops

        binary = next(part.arg for part in program.src if part.op is Ops.BINARY)
        return {
            "name": program.arg.function_name,
            "groups": [int(size) for size in program.arg.global_size],
            "group": [int(size) for size in program.arg.local_size or (1, 1, 1)],
            "code": self._numbers[binary],
        }


def _printed(mesa: Any, variant: Any, code: Any) -> str:
    """Return what the compiler's own printer says of a kernel."""
    printer = mesa.dll.ir3_shader_disasm
    printer.argtypes, printer.restype = [ctypes.c_void_p] * 3, None
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    with tempfile.TemporaryFile() as file:
        stream = libc.fdopen(os.dup(file.fileno()), b"w")
        printer(ctypes.addressof(variant), code, stream)
        libc.fclose(ctypes.c_void_p(stream))
        file.seek(0)
        return file.read().decode()


def _programs(path: Path) -> Iterator[Any]:
    """Yield the program of each launch of a frame, in order."""
    from tinygrad import Tensor, TinyJit, dtypes
    from tinygrad.uop.ops import Ops

    runner = _runner(path)
    inputs = {}
    for name, spec in runner.graph_inputs.items():
        shape = tuple(size if isinstance(size, int) else 1 for size in spec.shape)
        inputs[name] = Tensor.zeros(*shape, dtype=spec.dtype).clone().realize()

    def forward(**tensors: Any) -> dict[str, Any]:
        outputs = runner(tensors).items()
        return {name: tensor.cast(dtypes.float).contiguous() for name, tensor in outputs}

    recorded = TinyJit(forward, prune=True)
    for _ in range(2):  # once to run, once to record
        recorded(**inputs)

    def flat(calls: Any) -> Iterator[Any]:
        for call in calls.src:
            what = call.src[0]
            if what.op is Ops.PROGRAM:
                yield what
            elif what.op is Ops.CUSTOM_FUNCTION and what.arg == "graph":
                yield from flat(what.src[0])

    # The form before it is linked still has programs, one a launch.
    yield from flat(recorded.captured._linear)


def _runner(path: Path) -> Any:
    """Return tinygrad's runner of a model, with constants that were not read from the device.

    It copies constants to its device and back, and this one holds no values.
    """
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    model, runner = onnx.load(path), OnnxRunner(str(path))

    def known(name: str, tensor: onnx.TensorProto, theirs: Any) -> Any:
        array = numpy_helper.to_array(tensor)
        if array.size <= MAX_CONSTANT:
            runner._python_const_cache[name] = array.tolist()
        return Tensor(array.item(), dtype=theirs.dtype) if array.shape == () else theirs

    values = runner.graph_values
    for tensor in model.graph.initializer:
        values[tensor.name] = known(tensor.name, tensor, values[tensor.name])
    for node, theirs in zip(model.graph.node, runner.graph_nodes, strict=True):
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            tensor = node.attribute[0].t
            theirs.opts["value"] = known(node.output[0], tensor, theirs.opts["value"])
    return runner


if __name__ == "__main__":
    main()
