"""Kinds `bytes` and `halves`: quantised networks, and programs whose floats are halves."""

from dataclasses import replace
from typing import Final

from scheduler.device.spec import SPECS
from scheduler.ir import dtype as dt
from tests.fuzz.case import Case, Name
from tests.fuzz.graphs import case_of, network, single_steps, situations
from tests.fuzz.onnx_bytes import Bytes
from tests.fuzz.onnx_halves import model_of
from tests.fuzz.onnx_kind import imported_case, with_precision

# Types of new values: floats are halves, but for some that meet them behind casts.
KINDS: Final = (dt.float16,) * 8 + (dt.float32, dt.int32, dt.int8, dt.bool_)


def of_bytes(name: Name) -> Case:
    """Return a quantised network, with sums of dot products of bytes where a CPU may have them."""
    net = Bytes(name.seed)
    case = with_precision(imported_case(name, net.proto(), net.feeds, "bytes"))
    if name.seed % 2 == 0 and not SPECS[name.row].is_simt:
        (plain,) = case.variants
        case.variants = [replace(plain, label="bytes dot4", dot4=True)]
    return case


def of_halves(name: Name) -> Case:
    """Return a graph, layers or a model in halves: of odd seeds exact, of even ones wide."""
    way = name.seed % 5
    if way == 0:
        return network(name, dt.float16)
    if way < 3:
        return case_of((single_steps if way == 1 else situations)(name, kinds=KINDS), name)
    return imported_case(name, *model_of(name.seed))
