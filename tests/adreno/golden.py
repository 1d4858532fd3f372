"""Golden figures: what is written down of each kernel, and what differs from it.

They are compared for equality, like launches: the compiler is pinned, so a difference is ours. A
kernel is known by the ONNX nodes that it ends with, since its name changes with its text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.files.user_file import whole_file
from runtime.texts import short_origin
from tools.adreno.cost import EntryCost, Gpu, KernelCost
from tools.adreno.toolchain import GPUS, MESA
from tools.errors import ToolError

FORMAT: Final = 1
FOLDER: Final = Path(__file__).parent
# Fields of a kernel; the larger, the worse.
_COUNTS: Final = ("launches", "instructions", "registers", "spills", "code_bytes", "slots")
Record = Mapping[str, Any]


class GoldenError(ToolError):
    """Golden figures that are missing, damaged, or of another compiler."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs of one kernel.

    Attributes:
        kernel: what it is known by.
        is_worse: whether something of it costs more.
        text: what it was and is.
        nodes: all of its ONNX nodes.
    """

    kernel: str
    is_worse: bool
    text: str
    nodes: tuple[str, ...]

    def line(self) -> str:
        nodes = f" [{', '.join(self.nodes)}]" if self.nodes else ""
        return f"{'worse' if self.is_worse else 'differs'}: {self.kernel}{nodes}: {self.text}"


def records_of(costs: Mapping[str, EntryCost]) -> dict[str, dict[str, Any]]:
    """Return what is written down, by what kernels are known by.

    Args:
        costs: of each program of a workload, by its name; "" where there is one only.
    """
    found: dict[str, dict[str, Any]] = {}
    for kernel, key in _known(costs):
        found[key] = {
            "launches": kernel.launches,
            "items": kernel.items,
            "instructions": kernel.instructions,
            "registers": kernel.registers,
            "spills": kernel.spills,
            "code_bytes": kernel.code_bytes,
            "slots": round(sum(kernel.slots.values()), 1),
            "hot": kernel.plain()["hot"],
        }
    return found


def _known(costs: Mapping[str, EntryCost]) -> Iterator[tuple[KernelCost, str]]:
    counts: dict[str, int] = {}
    for program, cost in costs.items():
        for kernel in cost.kernels:
            key = " ".join(filter(None, (program, short_origin(kernel.origin))))
            counts[key] = counts.get(key, 0) + 1
            yield kernel, f"{key} #{counts[key]}" if counts[key] > 1 else key


def compare(golden: Mapping[str, Record], costs: Mapping[str, EntryCost]) -> list[Difference]:
    """Return what differs, worse kernels first."""
    kernels = {key: kernel for kernel, key in _known(costs)}
    gpu = next(iter(costs.values())).gpu
    found = records_of(costs)
    differences = [
        Difference(key, is_worse=False, text="gone", nodes=()) for key in golden if key not in found
    ]
    for key, now in found.items():
        nodes, before = kernels[key].origin, golden.get(key)
        faults = list(_faults(before or {}, now, gpu))
        if before is None:
            text = "; ".join(["new", *faults])
            differences.append(Difference(key, bool(faults), text, nodes))
        elif before != now:
            changed = [
                f"{field} {before.get(field)} -> {now[field]}"
                for field in (*_COUNTS, "items")
                if before.get(field) != now[field]
            ]
            more = _slots(now) > _slots(before)
            text = "; ".join([*faults, *changed]) or "the hot loop is made of other slots"
            differences.append(Difference(key, bool(faults) or more, text, nodes))
    return sorted(differences, key=lambda difference: not difference.is_worse)


def _faults(before: Record, now: Record, gpu: Gpu) -> Iterator[str]:
    """Yield what is wrong with a kernel that was not wrong with it before."""
    waves, cache_bytes = gpu.waves, gpu.cache_bytes
    if now["spills"] > before.get("spills", 0):
        yield f"{now['spills']} instructions spill registers"
    if now["code_bytes"] > cache_bytes >= before.get("code_bytes", 0):
        yield f"code of {now['code_bytes']} bytes is larger than the cache of {cache_bytes}"
    if before and waves(now["registers"]) < waves(before["registers"]):
        yield f"waves {waves(before['registers'])} -> {waves(now['registers'])}"


def _slots(record: Record) -> float:
    return float(record["slots"] * record["items"] * record["launches"])


def read(name: str) -> dict[str, Record]:
    """Return golden figures by their name."""
    path = FOLDER / f"{name}.json"
    remedy = "write them with --update --reason TEXT"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise GoldenError(f"{path}: expected golden figures, found none; {remedy}") from error
    except ValueError as error:
        raise GoldenError(f"{path}: expected JSON, found: {error}; {remedy}") from error
    found = {key: content.get(key) for key in ("format", "mesa", "gpu")}
    wanted = {"format": FORMAT, "mesa": MESA, "gpu": GPUS[0]}
    if found != wanted:
        raise GoldenError(f"{path}: expected figures of {wanted}, found {found}; {remedy}")
    kernels: dict[str, Record] = content["kernels"]
    return kernels


def write(name: str, costs: Mapping[str, EntryCost], reason: str) -> None:
    head = {"format": FORMAT, "mesa": MESA, "gpu": GPUS[0], "reason": reason}
    lines = [
        f"  {json.dumps(key)}: {json.dumps(record)}" for key, record in records_of(costs).items()
    ]
    fields = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    body = ",\n".join(lines)
    text = ",\n".join([*fields, f' "kernels": {{\n{body}\n }}'])
    with whole_file(FOLDER / f"{name}.json") as file:
        file.write(f"{{\n{text}\n}}\n".encode())


def failures_of(costs: Mapping[str, EntryCost]) -> Sequence[str]:
    return [
        f"not built: {' '.join(filter(None, (program, failure.name)))}: {failure.problem}"
        for program, cost in costs.items()
        for failure in cost.failures
    ]
