"""Plants a fault of code generation in a copy of an artifact: a constant of a kernel, or a delay.

``python -m tests.tools.regress.fault FROM.pkl TO.pkl NODE OLD NEW`` for one on the command line,
with a node such as ``/norm/LayerNormalization`` and constants as the kernels have them.
"""

import copy
import re
import sys
from pathlib import Path

from runtime.format.artifact import read_artifact, write_artifact


def plant(source: Path, target: Path, node: str, constants: tuple[str, str]) -> str:
    """Write a copy whose first kernel of a node has another constant, and no binaries.

    Args:
        source: a sound artifact.
        target: where the copy goes.
        node: name of an ONNX node, among the kernel's origins.
        constants: the old one, as the kernel's text has it, and the new one.

    Returns:
        The name of the kernel.
    """
    artifact = read_artifact(source)
    old, new = constants
    for kernel in artifact.manifest.kernels:
        if node not in kernel.origin:
            continue
        # Once by itself and once as a function of the megakernel.
        body = re.compile(rf"\b{kernel.name}\w*\([^)]*\)\s*\{{.*?\n\}}\n", re.DOTALL)
        raw = copy.deepcopy(dict(artifact.manifest.raw))
        count = 0
        for program in raw["programs"]:
            text = program["source"]
            changed = body.sub(lambda found: found[0].replace(old, new), text)
            count += changed != text
            program["source"], program["binary"] = changed, b""
        if count:
            write_artifact(target, raw, bytes(artifact.data))
            return str(kernel.name)
    sys.exit(f"no kernel of {node} has {old}")


def plant_delay(source: Path, target: Path, node: str, rounds: int, condition: str = "true") -> str:
    """Write a copy whose first kernel of a node idles in each work-item, and no binaries.

    Args:
        source: a sound artifact.
        target: where the copy goes.
        node: name of an ONNX node, among the kernel's origins.
        rounds: of a loop that does nothing.
        condition: when it idles; READ is the first argument that is no weight.

    Returns:
        The name of the kernel.
    """
    artifact = read_artifact(source)
    raw = copy.deepcopy(dict(artifact.manifest.raw))
    kernel = next(kernel for kernel in artifact.manifest.kernels if node in kernel.origin)
    name, buffers = kernel.name, artifact.manifest.buffers
    text = artifact.manifest.programs[kernel.program].source
    (parameters,) = re.findall(rf"void {name}\(([^)]*)\)", text)
    read = next(
        parameter.split()[-1]
        for parameter, index in zip(parameters.split(","), kernel.args, strict=True)
        if "const" in parameter and buffers[index].kind != "weight"
    )
    idle = f"for (volatile int wait = 0; wait < {rounds}; wait++) {{}}"
    delay = f"if ({condition.replace('READ', read)}) {{ {idle} }}"
    for program in raw["programs"]:
        # Once by itself and once as a function of the megakernel.
        program["source"] = re.sub(
            rf"(\b{name}\w*\([^)]*\)\s*\{{)", rf"\1 {delay}", program["source"]
        )
        program["binary"] = b""
    write_artifact(target, raw, bytes(artifact.data))
    return str(name)


if __name__ == "__main__":
    print(plant(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], (sys.argv[4], sys.argv[5])))  # noqa: T201 - a command prints its result
