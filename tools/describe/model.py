"""Describes an ONNX model, as `modeld inspect` prints it. Needs the `compile` extra.

Large attributes and initializers are summarized, not printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from runtime.texts import count_text, flops_column, flops_text, size_text
from scheduler.driving.facts import MONITORING, SUPERCOMBO
from scheduler.driving.fit import KnownModel, known_model
from scheduler.driving.monitoring import recognise_monitoring
from scheduler.driving.recognise import recognise_driving
from scheduler.errors import ModelError
from scheduler.onnx_import import load_model
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.limits import printable
from scheduler.onnx_import.metadata import CHECKPOINT_KEY, SLICES_KEY
from scheduler.onnx_import.report import Declared, ModelReport, NodeFacts, report
from tools.describe.artifact import Recognised, interface_section, plain_rows
from tools.lib.terminal import Section

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_PROPERTY: Final = 200
MOST_VALUES: Final = 8
MOST_TEXT: Final = 100
_NUMBERS: Final = "biuf"  # kinds of numpy types with an order


def describe(
    path: Path, bind: Mapping[str, int] | None = None, *, nodes: bool = False
) -> tuple[dict[str, Any], list[Section]]:
    """Return the contents of a model as facts and tables, even if it cannot be compiled.

    `bind` has sizes of symbolic dimensions, as for `import_model`; `nodes` lists every node and
    initializer.

    Raises:
        ModelError: the file is not a valid ONNX model, or lacks a dimension named in `bind`.
    """
    model = load_model(path)
    found = report(model, bind)
    known = known_model(model)
    driving = _recognised(known)
    facts = _facts(model, found) | {
        "interface": _interface_facts(known, driving),
        "external": _external(model, path),
    }
    sections = [
        Section("overview", ("what", "value"), list(_overview(facts, found))),
        Section("tensors", ("use", "name", "dtype", "shape", "as"), list(_tensors(found))),
        *_interface(known, driving),
        *_slices(found),
        _operators(found),
        *_problems(found),
        *_activations(found),
    ]
    if nodes:
        facts["nodes"] = node_facts(model, found.nodes)
        facts["initializers"] = initializer_facts(model)
        sections += [node_table(facts["nodes"]), initializer_table(facts["initializers"])]
    if found.notes:
        sections.append(Section("notes", ("note",), [(note,) for note in found.notes]))
    return facts, sections


def _facts(model: OnnxModel, found: ModelReport) -> dict[str, Any]:
    proto = model.proto
    props = model.metadata_props
    return {
        "opset": model.opset,
        "opsets": found.opsets,
        "ir_version": proto.ir_version,
        "producer": printable(f"{proto.producer_name} {proto.producer_version}".strip()),
        "sha256": model.sha256,
        "checkpoint": props.get(CHECKPOINT_KEY, ""),
        "metadata": {
            printable(key): printable(text, MAX_PROPERTY)
            for key, text in props.items()
            if key not in (CHECKPOINT_KEY, SLICES_KEY)
        },
        "output_slices": {name: list(bounds) for name, bounds in found.output_slices.items()},
        "parameters": found.parameters,
        "weight_bytes": found.weight_bytes,
        "element_types": found.element_types,
        "inputs": [_tensor(value) for value in found.inputs],
        "outputs": [_tensor(value) for value in found.outputs],
        "operators": dict(sorted(found.operators.items())),
        "flops": found.flops,
        "flops_by_operator": found.flops_by_operator,
        "uncounted": found.uncounted,
        "compiles": not found.problems,
        "unsupported": [
            {"node": p.node, "operator": p.op, "reason": p.reason, "nearest": p.nearest}
            for p in found.problems
        ],
        "unchecked": found.unchecked,
        "largest_activations": [_node(node) for node in found.largest_activations],
        "notes": list(found.notes),
    }


def _overview(facts: Mapping[str, Any], found: ModelReport) -> Iterator[tuple[object, ...]]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    yield "opset", opsets
    yield "IR version", str(facts["ir_version"])
    yield "producer", facts["producer"] or "unknown"
    yield "sha256", facts["sha256"]
    yield "checkpoint", facts["checkpoint"] or "unknown"
    for key, text in facts["metadata"].items():
        yield f"metadata: {key}", text
    yield "parameters", f"{facts['parameters']:,}"
    types = ", ".join(f"{name} {size_text(n)}" for name, n in found.element_types.items())
    yield "weights", f"{size_text(facts['weight_bytes'])}{f' ({types})' if types else ''}"
    for file in facts["external"]:
        text = f"{count_text(file['tensors'], 'tensor')}, {size_text(file['bytes'])}"
        yield f"external data: {file['file']}", text
    rest = f", and {count_text(found.uncounted, 'node')} of unknown work" if found.uncounted else ""
    yield "work", f"{flops_text(found.flops)}{rest}"
    yield (
        "compiles",
        "yes (import check only; run `modeld compile` to be sure)"
        if facts["compiles"]
        else "no, see below",
    )


def _tensors(found: ModelReport) -> Iterator[tuple[object, ...]]:
    for use, values in (("input", found.inputs), ("output", found.outputs)):
        for value in values:
            declared = _sizes(value.shape)
            bound = "?" if value.bound is None else _sizes(value.bound)
            yield use, value.name, value.dtype, declared, "" if bound == declared else bound


def _recognised(known: KnownModel | None) -> Recognised | str | None:
    """Return the interface of a complete driving model, or why it has none; None for others."""
    if known is None or known.facts.role not in (SUPERCOMBO, MONITORING):
        return None
    try:
        if known.facts.role == MONITORING:
            return recognise_monitoring(known.facts.model).interface
        return recognise_driving([known.facts.model])[0]
    except ModelError as error:
        return str(error)


def _interface_facts(
    known: KnownModel | None, driving: Recognised | str | None
) -> dict[str, Any] | None:
    if known is None:
        return None
    return {
        "role": known.facts.role,
        "title": known.title,
        "revisions": list(known.revisions),
        "inputs": known.inputs,
        "float16_inputs": list(known.facts.half),
        "differences": list(known.differences),
        "advice": known.advice,
        "problem": driving if isinstance(driving, str) else None,
        "properties": [] if driving is None or isinstance(driving, str) else plain_rows(driving),
    }


def _interface(known: KnownModel | None, driving: Recognised | str | None) -> Iterator[Section]:
    if known is None:
        return
    rows: list[tuple[object, ...]] = [(f"input {n}", what) for n, what in known.inputs.items()]
    if known.revisions:
        what = "nearest interfaces" if known.differences else "fits the interfaces"
        rows.append((what, ", ".join(known.revisions)))
    rows += [("differs", text) for text in known.differences]
    if isinstance(driving, str):
        rows.append(("cannot drive", driving))
    if known.facts.half:
        rows.append(("float16 inputs", ", ".join(known.facts.half)))
    rows.append(("advice", known.advice))
    yield Section(f"driving model: {known.title}", ("what", "value"), rows)
    if driving is not None and not isinstance(driving, str):
        yield interface_section(driving)


def _slices(found: ModelReport) -> Iterator[Section]:
    rows: list[tuple[object, ...]] = [
        (name, start, stop, stop - start) for name, (start, stop) in found.output_slices.items()
    ]
    if rows:
        yield Section("output slices", ("name", "start", "stop", "width"), rows)


def _operators(found: ModelReport) -> Section:
    refused = Counter(problem.op for problem in found.problems)
    operators = found.operators.most_common()
    unit, work = flops_column([found.flops_by_operator.get(name, 0) for name, _ in operators])
    rows: list[tuple[object, ...]] = [
        (name, count, flops, f"{refused[name]} not" if refused[name] else "yes")
        for (name, count), flops in zip(operators, work, strict=True)
    ]
    return Section(
        count_text(found.operators.total(), "node"), ("operator", "count", unit, "ok"), rows
    )


def _problems(found: ModelReport) -> Iterator[Section]:
    rows: list[tuple[object, ...]] = [
        (p.op, p.node or "-", p.reason, p.nearest or "-") for p in found.problems
    ]
    if rows:
        rest = (
            f"; {count_text(found.unchecked, 'node')} after them not checked"
            if found.unchecked
            else ""
        )
        header = ("operator", "node", "why", "nearest supported form")
        yield Section(f"cannot be compiled: {count_text(len(rows), 'problem')}{rest}", header, rows)


def _activations(found: ModelReport) -> Iterator[Section]:
    rows: list[tuple[object, ...]] = [
        (node.name, node.op, _sizes(node.shape or ()), node.dtype, size_text(node.bytes))
        for node in found.largest_activations
    ]
    if rows:
        header = ("node", "operator", "shape", "dtype", "size")
        yield Section("largest intermediates, before fusion", header, rows)


def _node(node: NodeFacts) -> dict[str, Any]:
    return {
        "name": node.name,
        "operator": node.op,
        "shape": None if node.shape is None else list(node.shape),
        "dtype": node.dtype,
        "bytes": node.bytes,
        "flops": node.flops,
        "constant": node.constant,
    }


def _tensor(value: Declared) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": value.name,
        "dtype": value.dtype,
        "shape": [size or "?" if isinstance(size, str) else size for size in value.shape],
    }
    if any(isinstance(size, str) for size in value.shape):
        facts["bound"] = None if value.bound is None else list(value.bound)
    return facts


def _sizes(shape: Sequence[int | str]) -> str:
    return "x".join(str(size) or "?" for size in shape) or "scalar"


def _external(model: OnnxModel, path: Path) -> list[dict[str, Any]]:
    """Return the files next to the model that hold weights."""
    # Loading replaces external data by values, but keeps the field that marks it.
    if not any(tensor.HasField("data_location") for tensor in model.proto.graph.initializer):
        return []
    files: dict[str, list[int]] = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if "location" in entries:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            expected = prod(tensor.dims) * dtype.itemsize
            size = int(entries.get("length") or expected)
            files.setdefault(printable(entries["location"]), []).append(size)
    return [
        {"file": name, "tensors": len(sizes), "bytes": sum(sizes)} for name, sizes in files.items()
    ]


def node_facts(model: OnnxModel, nodes: Sequence[NodeFacts]) -> list[dict[str, Any]]:
    """Return each node for machines; attributes are plain values, or text if they are large."""
    return [
        {
            "name": node.name,
            "operator": node.op,
            "inputs": list(proto.input),
            "outputs": list(proto.output),
            "attributes": {one.name: _attribute(one) for one in proto.attribute},
            "shape": None if node.shape is None else list(node.shape),
            "dtype": node.dtype,
            "bytes": node.bytes,
            "flops": node.flops,
            "constant": node.constant,
        }
        for node, proto in zip(nodes, model.proto.graph.node, strict=True)
    ]


def node_table(facts: Sequence[dict[str, Any]]) -> Section:
    """Return the nodes for people."""
    header = ("node", "operator", "shape", "dtype", "MFLOP", "", "inputs", "attributes")
    return Section("nodes", header, list(map(_node_row, facts)))


def _node_row(node: dict[str, Any]) -> tuple[object, ...]:
    shape, flops = node["shape"], node["flops"]
    attributes = " ".join(f"{name}={value}" for name, value in node["attributes"].items())
    return (
        node["name"],
        node["operator"],
        "?" if shape is None else "x".join(map(str, shape)) or "scalar",
        node["dtype"] or "?",
        None if flops is None else flops / 1e6,
        "known" if node["constant"] else "",
        printable(", ".join(node["inputs"]), MOST_TEXT),
        printable(attributes, MOST_TEXT),
    )


def initializer_facts(model: OnnxModel) -> list[dict[str, Any]]:
    """Return each initializer for machines; `values` is None if there are many."""
    return [
        {
            "name": name,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "bytes": array.nbytes,
            "values": array.tolist() if array.size <= MOST_VALUES and _is_number(array) else None,
            "min": array.min().item() if array.size and _is_number(array) else None,
            "max": array.max().item() if array.size and _is_number(array) else None,
        }
        for name, array in model.constants.items()
    ]


def initializer_table(facts: Sequence[dict[str, Any]]) -> Section:
    """Return the initializers for people."""
    header = ("initializer", "dtype", "shape", "size", "values")
    return Section("initializers", header, list(_initializer_rows(facts)))


def _initializer_rows(facts: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for one in facts:
        values = "" if one["values"] is None else str(one["values"])
        if not values and one["min"] is not None:
            values = f"{one['min']:g} to {one['max']:g}"
        shape = "x".join(map(str, one["shape"])) or "scalar"
        yield one["name"], one["dtype"], shape, size_text(one["bytes"]), values


def _attribute(attribute: onnx.AttributeProto) -> Any:
    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    value = onnx.helper.get_attribute_value(attribute)
    if kind == "STRING":
        return _text(value)
    if kind == "TENSOR":
        return _tensor_text(value)
    if kind == "GRAPH":
        return f"graph of {count_text(len(value.node), 'node')}"
    if kind in ("FLOAT", "INT"):
        return value
    if kind in ("FLOATS", "INTS", "STRINGS"):
        found = [_text(one) if kind == "STRINGS" else one for one in value]
        return found if len(found) <= MOST_VALUES else f"{len(found)} {kind.lower()}"
    return kind.lower()  # types, sparse tensors, and lists of tensors and graphs


def _tensor_text(tensor: onnx.TensorProto) -> str:
    shape = list(tensor.dims)
    name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError):  # its data are in another file
        return f"{name}{shape}"
    if array.size > MOST_VALUES or not _is_number(array):
        return f"{name}{shape}"
    return f"{name}{shape} {array.tolist()}"


def _text(value: bytes) -> str:
    return printable(value.decode("utf-8", "replace"), MOST_TEXT)


def _is_number(array: NDArray[Any]) -> bool:
    return np.dtype(array.dtype).kind in _NUMBERS
