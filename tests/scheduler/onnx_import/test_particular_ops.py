"""What the operator cases cannot say: accuracy, cost, large values, refusals."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.onnx_import import import_model, translate
from scheduler.onnx_import.ops.topk import first_places, sort_keys
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_cases.case import (
    Case,
    Const,
    case,
    draw,
    f,
    ints,
    k,
    one,
    own,
    u8,
)
from tests.scheduler.onnx_import.onnx_cases.patterns import TRIGONOMETRIC
from tests.scheduler.onnx_import.onnx_models import agree, node, parsed, results
from tests.scheduler.onnx_import.test_ops import build, graph_of, interpreted, reference
from tests.scheduler.support.programs import load

Array = NDArray[Any]
HALF = np.float16


def scalar(value: float) -> Array:
    return np.array([value], np.float32)


@pytest.mark.parametrize("kind", [dt.float16, dt.float32, dt.float64], ids=str)
@pytest.mark.parametrize("op", TRIGONOMETRIC)
def test_functions_are_accurate_near_0_far_out_and_at_the_ends(op: str, kind: dt.DType) -> None:
    rng = np.random.default_rng(1)
    low, high = {"float16": (-7.0, 4.8), "float32": (-44.0, 38.5)}.get(kind.name, (-300.0, 308.0))
    spread = 10 ** rng.uniform(low, high, 1500), rng.uniform(0, 12, 1500)
    near = 1 + 10 ** rng.uniform(-16, 0, (2, 500)) * [[-1], [1]]
    positive = np.concatenate([*spread, *near, [0, 1, np.inf, np.nan]])
    x = np.concatenate([positive, -positive]).astype(kind.np)
    if op == "Tan":
        x = x[np.isfinite(x)]
    (found,) = interpreted(case(op, x, opset=22))
    with np.errstate(all="ignore"):
        exact = getattr(np, op.lower())(x.astype(np.longdouble))
        want = exact.astype(kind.np)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(want))
    finite = np.isfinite(want)
    error = np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(want[finite]))
    assert error.max() <= (0.51 if kind is dt.float16 else 6.0)


@pytest.mark.parametrize("n", [64, 1000, 1 << 20])
def test_a_cumulative_sum_costs_a_constant_per_element(n: int) -> None:
    order = graph_of(case("CumSum", np.broadcast_to(np.float32(1), (n,)), one(0)))
    work = sum(math.prod(made.src[0].shape) for made in order if made.op is Op.REDUCE)
    assert work <= 70 * n
    assert len(order) < 120


SAME = one([[1] * 4, [2] * 4])
BOX = Const(np.stack(np.meshgrid([1, 2], [0, 1, 2], indexing="ij"), -1))


@pytest.mark.parametrize(
    "made",
    [case("ScatterND", f(4, 5), BOX, f(2, 3)), case("GatherElements", f(4, 4), SAME, axis=0)],
    ids=lambda c: c.op,
)
def test_known_boxes_and_ranges_of_indices_take_no_gather(made: Case) -> None:
    assert Op.GATHER not in {n.op for n in graph_of(made)}


def test_einsum_of_two_is_the_graph_of_a_matrix_product() -> None:
    operands = f(2, 3, 4, 5), f(2, 3, 5, 6)
    found = graph_of(case("Einsum", *operands, equation="bhij,bhjk->bhik"))
    assert [n.op for n in found] == [n.op for n in graph_of(case("MatMul", *operands))]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (case("Compress", f(3), np.array([True, False, True])), "decide the shape"),
        (case("NonZero", f(3)), "decide how many"),
        (case("Unique", f(3)), "decide how many"),
        (case("TopK", f(3), np.array([2]), outputs=2), "decides the shape"),
        (case("Gather", f(3), one([3])), "out of range"),
        (case("GatherElements", f(2, 3), one([[0], [2]]), axis=0), "out of range"),
        (case("ScatterND", f(2, 3), one([[2]]), f(1, 3)), "out of range"),
        (case("Einsum", f(2, 3), f(2, 3), equation="ij,jk"), "sizes"),
        (case("Det", f(17, 17), opset=22), "at most 16"),
        (case("Dropout", f(3), None, one(True, bool)), "drops at random"),
        (case("Dropout", f(3), one(0.3, np.float32), one(True, bool)), "drops at random"),
        (case("Constant", value_string="a"), "strings are not supported"),
        (case("Constant", value_strings=["a", "b"]), "strings are not supported"),
    ],
    ids=lambda v: v.label if isinstance(v, Case) else "",
)
def test_what_cannot_be_imported_is_refused(made: Case, message: str) -> None:
    model = build(made, folded=False)[0]
    with pytest.raises(ModelError, match=message):
        import_model(model)


def test_too_much_work_is_refused_before_it_begins() -> None:
    long = Tensor.zeros(2**17, 1).contiguous()
    compared = (long < long.reshape((1, -1))).sum(1)
    with pytest.raises(ModelError, match="intermediate array"):
        translate.evaluate_known([compared], 0)
    some = Tensor.zeros(1000).contiguous() + 1.0
    values, spent = translate.evaluate_known([some], 0)
    assert values[0].tolist() == [1.0] * 1000
    assert spent == 1000
    with pytest.raises(ModelError, match="for a model are supported"):
        translate.evaluate_known([some], translate.MAX_MODEL_WORK)
    wide = case("Conv", f(1, 32, 300, 300), f(32, 32, 48, 48))
    with pytest.raises(ModelError, match="element operations"):
        import_model(build(wide, folded=True)[0])


def boxes(images: int, count: int) -> Array:
    """Return boxes that overlap a lot, their corners in any order, some without an area."""
    first = draw().random((images, count, 2)) * 10
    second = first + ints(-4, 5, images, count, 2)
    return np.concatenate([first, second], -1).astype(np.float32)


def scores(*shape: int) -> Array:
    return ints(0, 40, *shape, dtype=np.float32) / 40


def suppressed(corners: Array, values: Array, *limits: Any, **attributes: Any) -> Case:
    return case("NonMaxSuppression", corners, values, *limits, **attributes)


BYTES = u8(300, 400), u8(400, 300)
LARGE_CASES = [
    case("TopK", f(200_000), k(200_000), outputs=2),
    case("TopK", f(200_000), k(1000), outputs=2, largest=0),
    case("Pad", f(2, 3), k(0, 100_000, 0, 70_000), mode="edge"),
    case("Pad", f(3, 4), k(70_000, -1, 0, -2), mode="edge"),
    suppressed(boxes(2, 300), scores(2, 3, 300), k(20), scalar(0.3), scalar(0.2)),
    suppressed(boxes(1, 200), scores(1, 2, 200), k(500), scalar(0.6)),
    suppressed(abs(boxes(1, 200)), scores(1, 1, 200), k(9), scalar(0.4), center_point_box=1),
    suppressed(boxes(1, 20), scores(1, 1, 20), k(0)),
    own("Det", f(5, 20, 20), opset=22),
    case("MatMulInteger", *BYTES, opset=10),
    case("MaxPool", f(1, 3, 60, 60), kernel_shape=[9, 9], pads=[4, 4, 4, 4]),
    case("MaxPool", f(1, 8, 90, 70), kernel_shape=[7, 5], dilations=[2, 3], strides=[1, 2]),
    case("AveragePool", f(1, 3, 60, 60), kernel_shape=[11, 9], pads=[5, 4, 3, 2], ceil_mode=1),
]


@pytest.mark.parametrize("folded", [False, True], ids=["run", "fold"])
@pytest.mark.parametrize("made", LARGE_CASES, ids=lambda c: c.label)
def test_large_values_agree_with_onnxruntime(made: Case, folded: bool) -> None:
    model, feeds = build(made, folded=folded or made.op in ("NonMaxSuppression", "Det"))
    found = results(model, feeds)
    for a, b in zip(found, reference(made, model, feeds), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-4 if made.op == "Det" else 1e-5, atol=1e-6)


def test_keys_sort_as_values_do() -> None:
    values = np.array([-np.inf, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, np.inf, np.nan], np.float32)
    keys = sort_keys(Tensor(values)).interp()
    assert (np.diff(keys) >= 0).all()
    assert [i for i in range(8) if keys[i] == keys[i + 1]] == [3]
    negative_nan = np.copysign(scalar(np.nan), -1.0)
    assert sort_keys(Tensor(negative_nan)).interp()[0] == keys[-1]


@pytest.mark.parametrize(("size", "count"), [(300, 3), (65, 16), (64, 63)])
def test_blocks_give_what_sorting_gives(size: int, count: int) -> None:
    keys = np.random.default_rng(size).integers(-9, 9, (2, size)).astype(np.int32)
    found = first_places(Tensor(keys), count).interp()
    assert np.array_equal(found, np.argsort(-keys, axis=1, kind="stable")[:, :count])


@pytest.mark.opencl
def test_run_time_indices_out_of_range_stay_inside() -> None:
    wild = np.array([[7, -9, 2**40]])
    read = case("GatherElements", f(4, 3), wild, axis=0)
    written = case("ScatterElements", f(4, 3), wild, f(1, 3), axis=0)
    for made in (read, written):
        model, feeds = build(made, folded=False)
        data = feeds["x0"]
        picked = [[data[3, 0], data[0, 1], data[3, 2]]]
        with load(import_model(model).outputs) as program:
            found = program.run(feeds)["y0"]
            np.testing.assert_array_equal(found, picked if made is read else data)


def test_slopes_of_channels_of_old_exporters() -> None:
    x = -np.ones((1, 3, 4, 5), np.float32)
    slope = np.array([1, 2, 3], np.float32)
    (found,) = interpreted(case("PRelu", x, slope, opset=7))
    np.testing.assert_array_equal(found, x * slope.reshape(3, 1, 1))


def test_a_sparse_constant_is_written_out() -> None:
    places = numpy_helper.from_array(np.array([1, 5]), "i")
    values = numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "v")
    sparse = helper.make_sparse_tensor(values, places, (2, 3))
    (found,) = interpreted(case("Constant", sparse_value=sparse))
    np.testing.assert_array_equal(found, [[0, 1.5, 0], [0, 0, -2]])


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("known", [False, True], ids=["run-time", "known"])
def test_branches_with_weights_of_one_name_keep_their_own(known: bool, condition: bool) -> None:
    def adds(number: float) -> Any:
        weight = numpy_helper.from_array(np.array(number, np.float32), "w")
        result = helper.make_tensor_value_info("o", TensorProto.FLOAT, [3])
        return helper.make_graph([node("Add", "x w", "o")], "branch", [], [result], [weight])

    x, test = np.array([1, 2, 3], np.float32), np.array(condition)
    given = "" if known else ", bool test"
    text = f"(float[3] x{given}) => (float[60] y) {{}}"
    model = parsed(text, test=test) if known else parsed(text)
    model.graph.node.extend(
        node("If", "test", f"r{i}", then_branch=adds(i), else_branch=adds(-100 - i))
        for i in range(20)
    )
    joined = node("Concat", " ".join(f"r{i}" for i in range(20)), "y", axis=0)
    model.graph.node.append(joined)
    feeds = {"x": x} | ({} if known else {"test": test})
    total = np.concatenate([x + (i if condition else -100 - i) for i in range(20)])
    np.testing.assert_array_equal(results(model, feeds)[0], total)


LARGE = (np.random.default_rng(1).standard_normal((1, 3, 40, 40)) * 300).astype(HALF)


@pytest.mark.parametrize(
    "made",
    [
        case("GlobalAveragePool", np.abs(LARGE)),
        case("GlobalLpPool", LARGE),
        case("AveragePool", np.abs(LARGE), kernel_shape=[30, 30], pads=[1, 0, 2, 3]),
        case("LpPool", LARGE, kernel_shape=[3, 3], opset=18),
        case("LRN", LARGE, size=3, opset=13),
        case("Mean", np.full(3, 6e4, HALF), np.full(3, 5e4, HALF)),
    ],
    ids=lambda c: c.op,
)
def test_sums_of_halves_are_wider_than_halves(made: Case) -> None:
    wide = Case(made.op, tuple(i.astype(np.float32) for i in made.inputs), made.attributes, 18)
    expected = reference(wide, *build(wide, folded=False))
    agree(interpreted(made), [e.astype(HALF) for e in expected], 2e-3)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_positions_that_are_no_numbers_read_nothing_outside(mode: str, padding: str) -> None:
    image = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    rows = [[np.nan, 0], [0, np.nan], [np.inf, 0], [0, -np.inf], [0, 0]]
    grid = np.array([[rows]], np.float32)
    (found,) = interpreted(case("GridSample", image, grid, mode=mode, padding_mode=padding))
    assert found[0, 0, 0, 4] == 5


def test_nearest_of_opset_10_reads_the_later_element_where_an_axis_shrinks() -> None:
    image = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    made = case("Resize", image, k(1, 1, 0.6, 0.6, dtype=np.float32), mode="nearest", opset=10)
    found = interpreted(made)
    np.testing.assert_array_equal(found[0], [[[[1, 3]]]])
    agree(found, reference(made, *build(made, folded=False)), 1e-6)
