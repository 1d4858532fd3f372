"""Text of graphs, bodies and loops: each line of them."""

import numpy as np

from scheduler.debug.pretty import Names, pretty, pretty_body, pretty_loops
from scheduler.device.spec import DEFAULT
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.node import const, make
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.kernelize.body import Body, Store
from scheduler.kernelize.make_kernels import make_kernels
from scheduler.kernelize.store_plan import store_plan
from scheduler.loops.loop_schedule import LoopSchedule, Tile
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import x


def test_a_graph_is_a_line_for_each_node_sources_first() -> None:
    a = x(4, 3)
    total = make(Op.REDUCE, dt.float32, (a.node,), (Op.ADD, (1,)))
    root = make(Op.PAD, dt.float32, (total,), (((0, 0), (1, 2)), -1.5))
    origins = Origins()
    origins.name([a.node], ())
    origins.name([total], ("/layer/Sum",))
    assert pretty([root], origins=origins) == (
        "%0 = buffer input x : float32[4, 3]\n"
        "%1 = reduce add axes 1 (%0) : float32[4, 1]  # /layer/Sum\n"
        "%2 = pad ((0, 0), (1, 2)) with -1.5 (%1) : float32[4, 4]\n"
        "return %2"
    )


def test_a_shared_node_is_one_line() -> None:
    a = x(2)
    assert pretty([(a * a + a).node]).splitlines() == [
        "%0 = buffer input x : float32[2]",
        "%1 = mul (%0, %0) : float32[2]",
        "%2 = add (%1, %0) : float32[2]",
        "return %2",
    ]


def test_a_node_keeps_its_number_after_a_pass() -> None:
    a, names = x(2), Names()
    first, second = (a + 1.0).node, (a * 3.0).node
    pretty([first], names)
    known = names(a.node)
    assert f"({known}, " in pretty([second], names).splitlines()[-2]
    assert names(second) not in pretty([first], names)


def test_an_origin_of_many_lines_stays_on_one_and_a_long_argument_is_cut() -> None:
    node, origins = x(2).exp().node, Origins()
    origins.name([node], ("a\nb",))
    text = pretty([node], origins=origins)
    assert "# a b" in text
    assert len(text.splitlines()) == len({*node.src}) + 2
    weight = Tensor.weight(np.arange(2, dtype=np.float32))
    text = pretty([Tensor.cat([weight.pad(((i, 63 - i),)) for i in range(3)], 0).node])
    assert max(map(len, text.splitlines())) < 300


def test_the_body_of_a_matrix_product_names_its_ranges() -> None:
    product = x(4, 8) @ x(8, 5, name="w")
    (kernel,) = make_kernels(store_plan([product.contiguous().node], DEFAULT))
    lines = pretty_body(kernel.bodies[0], lambda n: str(n.arg.name)).splitlines()
    assert lines[0] == "for r0<4, r1<5:"
    loads = {line.partition(" = ")[2] for line in lines[1:3]}
    assert loads == {"load x[r0, k0]", "load w[k0, r1]"}
    assert "  v3 = add over k0<8: v2" in lines
    assert lines[-1] == "  store [r0, r1] = v3"


def test_the_body_shows_where_a_padded_value_is_read() -> None:
    (kernel,) = make_kernels(store_plan([x(4).pad(((1, 2),)).contiguous().node], DEFAULT))
    text = pretty_body(kernel.bodies[0])
    assert "v0 = load %0[r0-1] where 0<=r0-1<=3 else 0" in text


def test_ranges_of_one_name_get_different_names() -> None:
    a, b = ixs.new_range(3, "k"), ixs.new_range(5, "k")
    index = make(Op.INDEX, dt.int32, (), ixs.add(ixs.of(a), ixs.of(b)))
    body = Body((), (Store(const(0, dt.int32), (), index),))
    assert "v0 = index k0+k1" in pretty_body(body)


def test_loops_on_one_line() -> None:
    row, column, inner = (ixs.new_range(n, name) for n, name in ((6, "r0"), (32, "r1"), (8, "k0")))
    loops = LoopSchedule([Tile(row, 3, 1), Tile(column, 1, 16)], column, 16, steps=4, chunk=2)
    loops.reduce_order[const(1, dt.int32)] = (inner,)
    loops.reduce_unroll[inner] = 4
    assert pretty_loops(loops) == (
        "items 2 x 2 steps, vector r1, lanes 16, tiles r0<6>=2x3x1 r1<32>=2x1x16, reduce k0, "
        "unroll k0/4"
    )
