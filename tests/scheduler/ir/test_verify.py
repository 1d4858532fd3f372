"""Each rule of the IR can fail, and says where."""

from typing import Any

import pytest

from scheduler.errors import VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.node import Buffer, Node, alu, make
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.ir.verify import verify


def of(*shape: int, kind: DType = dt.float32, what: str = "input") -> Node:
    return make(Op.BUFFER, kind, (), Buffer(what, what[0], shape, kind))


F, STATE = of(2, 3), of(2, 3, what="state")
I, B = of(2, 3, kind=dt.int32), of(2, 3, kind=dt.bool_)  # noqa: E741  # next to F
WHOLE, ROWS = ((0, 2, 1), (0, 3, 1)), ((0, 2, 1), None)
AT, AT_TWO = of(2, kind=dt.int32), of(2, 1, kind=dt.int32)

BAD: list[tuple[str, Op, DType, tuple[Node, ...], Any, str]] = [
    ("two sources of a unary", Op.NEG, dt.float32, (F, F), None, "expected 1 sources, found 2"),
    ("one source of a binary", Op.ADD, dt.float32, (F,), None, "expected 2 sources, found 1"),
    ("two sources of a choice", Op.WHERE, dt.float32, (B, F), None, "expected 3 sources"),
    ("one source of a concat", Op.CAT, dt.float32, (F,), 0, "at least two"),
    ("an index op in a tensor graph", Op.INDEX, dt.int32, (), None, "scalar-level"),
    ("the root of integers", Op.SQRT, dt.int32, (I,), None, "needs a float type"),
    ("a quotient of integers", Op.DIV, dt.int32, (I, I), None, "needs a float type"),
    ("a shift of floats", Op.SHL, dt.float32, (F, F), None, "needs an integer type"),
    ("a remainder of floats", Op.MOD, dt.float32, (F, F), None, "needs an integer type"),
    ("a comparison that is a float", Op.LT, dt.float32, (F, F), None, "gives bool"),
    ("a choice by integers", Op.WHERE, dt.float32, (I, F, F), None, "WHERE over"),
    ("a choice between types", Op.WHERE, dt.float32, (B, F, I), None, "WHERE over"),
    ("a float as an index", Op.GATHER, dt.float32, (F, F), 0, "GATHER over"),
    ("a sum of two types", Op.ADD, dt.float32, (F, I), None, "cannot give float32"),
    ("a movement that changes the type", Op.PERMUTE, dt.int32, (F,), (1, 0), "cannot give int32"),
    ("a state of another type", Op.ASSIGN, dt.float32, (STATE, I), None, "cannot give float32"),
]


@pytest.mark.parametrize(
    ("op", "kind", "src", "arg", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_a_broken_graph_is_refused(
    op: Op, kind: DType, src: tuple[Node, ...], arg: Any, message: str
) -> None:
    node = make(op, kind, src, arg)
    with pytest.raises(VerifyError, match=message):
        verify([node])


BAD_SHAPES: list[tuple[str, Op, tuple[Node, ...], Any, str]] = [
    ("reshape", Op.RESHAPE, (F,), (7,), "6 elements"),
    ("permute", Op.PERMUTE, (F,), (0, 0), "not a permutation"),
    ("expand", Op.EXPAND, (F,), (4, 3), "does not expand"),
    ("pad", Op.PAD, (F,), (((0, 0),), 0), "widths"),
    ("negative pad", Op.PAD, (F,), (((0, -1), (0, 0)), 0), "widths"),
    ("shrink", Op.SHRINK, (F,), ((0, 3, 1), (0, 3, 1)), "does not fit"),
    ("step of zero", Op.SHRINK, (F,), ((0, 2, 0), (0, 3, 1)), "does not fit"),
    ("flip", Op.FLIP, (F,), (2,), "do not fit"),
    ("window", Op.WINDOW, (F,), (1, 3, 2, 1, 1), "beyond axis 1"),
    ("cat", Op.CAT, (F, make(Op.RESHAPE, dt.float32, (F,), (3, 2))), 0, "differ outside axis"),
    ("gather", Op.GATHER, (F, I), 2, "does not fit"),
    ("reduce an axis", Op.REDUCE, (F,), (Op.ADD, (2,)), "does not fit"),
    ("reduce by an op", Op.REDUCE, (F,), (Op.SUB, (0,)), "does not fit"),
    ("assign to an op", Op.ASSIGN, (make(Op.NEG, dt.float32, (F,)), F), None, "cannot take"),
    ("assign a part of another size", Op.ASSIGN, (F, of(1, 3)), WHOLE, "ASSIGN"),
    ("assign beyond the end", Op.ASSIGN, (F, of(3, 3)), ((0, 3, 1), (0, 3, 1)), "ASSIGN"),
    ("assign a part of one axis", Op.ASSIGN, (F, of(2)), ((0, 2, 1),), "ASSIGN"),
    ("assign by an index of no axis", Op.ASSIGN, (F, F, AT), WHOLE, "ASSIGN"),
    ("assign by an index of two axes", Op.ASSIGN, (F, of(2, 2), AT_TWO), ROWS, "ASSIGN"),
    ("elementwise", Op.ADD, (F, make(Op.RESHAPE, dt.float32, (F,), (6,))), None, "one shape"),
]


@pytest.mark.parametrize(
    ("op", "src", "arg", "message"), [b[1:] for b in BAD_SHAPES], ids=[b[0] for b in BAD_SHAPES]
)
def test_shapes_are_checked_when_a_node_is_made(
    op: Op, src: tuple[Node, ...], arg: Any, message: str
) -> None:
    with pytest.raises(VerifyError, match=message):
        make(op, dt.float32, src, arg)


def test_operands_of_two_types_are_refused_at_once() -> None:
    with pytest.raises(VerifyError, match="one type"):
        alu(Op.ADD, F, I)


def test_a_state_assigned_twice_is_refused() -> None:
    writes = [make(Op.ASSIGN, dt.float32, (STATE, v)) for v in (F, make(Op.NEG, dt.float32, (F,)))]
    verify(writes[:1])
    with pytest.raises(VerifyError, match=r"state:s\[2, 3\]: assigned twice"):
        verify(writes)


def test_the_message_names_the_pass_and_the_onnx_node() -> None:
    bad, origins = make(Op.SQRT, dt.int32, (make(Op.ABS, dt.int32, (I,)),)), Origins()
    origins.name([bad], ("/head/sqrt",))
    with pytest.raises(VerifyError, match=r"after folding: .*SQRT.*/head/sqrt"):
        verify([bad], "folding", origins)
