"""Kind `choices`: loops that nobody would choose, and Winograd's convolution wherever it exists."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from unittest import mock

from scheduler import pipeline
from scheduler.context import FAST, CompileContext
from scheduler.device.spec import SPECS
from scheduler.device.tuned_table import MAX_BODY, MAX_TILE, Choice, Entry, TunedTable
from scheduler.passes.winograd import Worth, winograd
from scheduler.passes.winograd_kernel import fits
from scheduler.schedule_cache import EntryGraph
from scheduler.tensor.tensor import Tensor
from scheduler.tuning.variants import jobs_of
from tests.fuzz.case import Case, Name, Variant
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import case_of, single_steps
from tests.fuzz.networks import PROFILES, layers

WAYS = 2  # tables for each program


def make(name: Name) -> Case:
    """Return layers or a graph of single steps, with the heuristic's loops and others."""
    draw = Draw(name.seed)
    if name.seed % 4 == 3:
        p = single_steps(name)
        ways = forced(draw, name.row, p.outputs)
        return case_of(p, name, [Variant("heuristic", p.outputs), *ways])
    net = layers(draw, draw.pick(PROFILES))
    data = net.data(draw.integer(1, 2))
    outputs = {"y": net(Tensor.input("x", data.shape))}
    variants = [Variant("heuristic", outputs), *forced(draw, name.row, outputs)]
    if len(net.shape) == 3 and not SPECS[name.row].is_simt:
        for label, worth in (("winograd", fits), ("no winograd", lambda *_: False)):
            variants.append(Variant(label, outputs, setting=partial(winograd_where, worth)))
    return Case(name, outputs, variants, [{"x": data, **net.inputs}])


def choice(draw: Draw, row: str) -> Choice:
    """Return any choice of loops for a row of the device table."""
    fields: dict[str, int] = {
        "vectors": draw.integer(1, 4),
        "rows": draw.integer(1, 8),
        "unroll": draw.integer(1, 8),
        "items": draw.integer(1, 300),
        "blocks": draw.integer(1, 8),
        "lanes": draw.pick([4, 8, 16]),
        "outside": 1,
        "prefetch": draw.integer(1, 2),
    }
    if SPECS[row].is_simt:
        fields["group"], fields["local"] = draw.pick([1, 16, 24, 64, 256]), draw.integer(1, 4)
        fields["lanes"], fields["weights"] = draw.pick([1, 2, 4]), 1
    kept = {k: v for k, v in fields.items() if draw.flag()}
    tile = kept.get("vectors", 1) * kept.get("rows", 1)
    if tile > MAX_TILE or tile * kept.get("unroll", 1) > MAX_BODY:
        kept.pop("rows")
    return Choice(**kept)


def forced(
    draw: Draw, row: str, outputs: Mapping[str, Tensor], numerics: str = FAST
) -> list[Variant]:
    """Return variants with a random choice for each loop nest."""
    graph = EntryGraph({n: t.node for n, t in outputs.items()})
    jobs = jobs_of([graph], CompileContext(SPECS[row], numerics=numerics))
    found = []
    for _ in range(WAYS):
        entries = {job.key: Entry(job.was, choice(draw, row), 2.0, 1.0, 1) for job in jobs}
        label = ", ".join(f"[{entry.choice}]" for entry in entries.values())
        table = TunedTable(entries=entries)
        found.append(Variant(f"loops {label}", outputs, numerics=numerics, tuned=table, row=row))
    return found


@contextmanager
def winograd_where(worth: Worth) -> Iterator[None]:
    """Take Winograd's convolution where a rule says so, faster or not."""
    listed = pipeline.passes

    def forced(context: CompileContext) -> tuple[tuple[str, pipeline.Pass], ...]:
        mine = partial(winograd, spec=context.spec, worth=worth)
        found = listed(context)
        return tuple((n, mine if n == pipeline.WINOGRAD else apply) for n, apply in found)

    with mock.patch.object(pipeline, "passes", forced):
        yield
