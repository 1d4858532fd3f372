"""Which nodes of a model cannot be translated, and what comes nearest. All of them at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import onnx

from scheduler.errors import UnsupportedOpError
from scheduler.onnx_import.load import DEFAULT_DOMAINS, OnnxModel, printable
from scheduler.onnx_import.table import TRANSLATORS

# Always evaluated while importing: the result does not depend on the values of their inputs.
SHAPE_ONLY = frozenset({"Constant", "Shape", "Size"})
# Not a function of their inputs: never evaluated while importing.
RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
NAMES_PER_OP = 8

# What a user can write instead; without an entry, the most similar supported name is suggested.
HINTS = {
    "Einsum": "write it as Transpose, Reshape and MatMul",
    "GRU": "unroll it over time into Gemm, Sigmoid and Tanh",
    "GroupNormalization": "Reshape and InstanceNormalization",
    "If": "export the branch that is taken",
    "LSTM": "unroll it over time into Gemm, Sigmoid and Tanh",
    "Loop": "unroll it over its constant trip count",
    "LpNormalization": "Div by ReduceL2",
    "RNN": "unroll it over time into Gemm and Tanh",
    "Scan": "unroll it over its constant length",
    "TopK": "ArgMax",
}


def unsupported_nodes(model: OnnxModel) -> list[onnx.NodeProto]:
    """Return every node that can neither be translated nor evaluated while importing.

    A node without a translator is fine where all its inputs are known: onnx's reference evaluator
    computes it.
    """
    known = set(model.constants)
    bad = []
    for node in model.proto.graph.node:
        default = node.domain in DEFAULT_DOMAINS
        foldable = default and node.op_type not in RANDOM
        if foldable and (
            node.op_type in SHAPE_ONLY or all(not name or name in known for name in node.input)
        ):
            if not onnx.defs.has(node.op_type, model.opset, ""):
                bad.append(node)
            known.update(node.output)
        elif not default or node.op_type not in TRANSLATORS:
            bad.append(node)
    return bad


def check_supported(*models: OnnxModel) -> None:
    """Refuse models with nodes that cannot be translated.

    Raises:
        UnsupportedOpError: names every such operator of every model, its nodes and what comes
            nearest.
    """
    found = [text for model in models if (text := _unsupported_text(model))]
    if found:
        raise UnsupportedOpError(f"{'; '.join(found)}; replace them and export again")


def _unsupported_text(model: OnnxModel) -> str:
    """Return what of a model cannot be translated, "" if all of it can."""
    bad = unsupported_nodes(model)
    if not bad:
        return ""
    by_op: dict[str, list[str]] = {}
    for node in bad:
        by_op.setdefault(qualified_op(node), []).append(node_label(node))
    parts = [f"{op} ({_names(names)}{_hint(op)})" for op, names in sorted(by_op.items())]
    kinds = "operator is" if len(by_op) == 1 else "operators are"
    return (
        f"{model.name}: {len(by_op)} {kinds} not supported at opset {model.opset}: "
        f"{', '.join(parts)}"
    )


def node_label(node: onnx.NodeProto) -> str:
    """Return what to call a node: its name, or the name of its first output."""
    if node.name:
        return printable(node.name)
    return next((f"-> {printable(name)}" for name in node.output if name), "unnamed")


def qualified_op(node: onnx.NodeProto) -> str:
    """Return the op type, after its domain where that is not the default one."""
    op_type = printable(node.op_type)
    return op_type if node.domain in DEFAULT_DOMAINS else f"{printable(node.domain)}:{op_type}"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    text = ", ".join(f'"{name}"' for name in listed[:NAMES_PER_OP])
    rest = len(listed) - NAMES_PER_OP
    kind = "node" if len(listed) == 1 else "nodes"
    return f"{kind} {text} and {rest} more" if rest > 0 else f"{kind} {text}"


def _hint(op: str) -> str:
    op_type = op.rpartition(":")[2]
    if op_type in TRANSLATORS and op != op_type:
        return f"; nearest supported: {op_type} of the default domain"
    close = difflib.get_close_matches(op_type, TRANSLATORS, n=1, cutoff=0.6)
    hint = HINTS.get(op_type) or (close[0] if close else "")
    return f"; nearest supported: {hint}" if hint else ""
