"""Kind `strict`: with strict numerics a program gives the same bytes on every row, in any loops.

Reports of runs on other processors are compared by `--same-as`.
"""

from dataclasses import replace
from functools import partial

from scheduler.context import STRICT
from scheduler.device.spec import SPECS
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.passes.strict_numerics import LIBRARY
from tests.fuzz import choices, graphs, onnx_kind
from tests.fuzz.case import Case, Name
from tests.fuzz.draw import Draw

ROWS = tuple(name for name, spec in SPECS.items() if spec.exact_steps)
# Makers of programs, in turn.
_MAKERS = (graphs.make, graphs.with_states, partial(onnx_kind.make, numerics=STRICT), graphs.make)
# Of so many programs one is computed with loops that nobody would choose, too, and one in kernels
# of few buffers, which end elsewhere.
_LOOPS_EVERY = _BUFFERS_EVERY = 4
_BUFFERS = (5, 6, 8)


def make(name: Name) -> Case:
    """Return a program of another kind for all rows; without variants if it has no strict form."""
    case = _MAKERS[name.seed % len(_MAKERS)](name)
    case.equal = True
    nodes = toposort([t.node for t in (*case.outputs.values(), *case.writes)])
    if any(n.op in LIBRARY and n.dtype is dt.float64 for n in nodes):
        case.variants = []
        return case
    first = case.variants[0]
    case.variants = [replace(first, label=row, numerics=STRICT, row=row) for row in ROWS]
    if name.seed % _LOOPS_EVERY == 0 and not case.writes:
        row = ROWS[name.seed // _LOOPS_EVERY % len(ROWS)]
        case.variants += choices.forced(Draw(name.seed), row, first.outputs, STRICT)
    if name.seed % _BUFFERS_EVERY == 1:
        few = _BUFFERS[name.seed // _BUFFERS_EVERY % len(_BUFFERS)]
        case.variants.append(replace(case.variants[0], label=f"{few} buffers", buffers=few))
    return case
