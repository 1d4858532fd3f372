"""The pass keeps, of each value with alternatives, the form that suits the device.

alternatives(sorted_places(keys), count_before(keys))   ->   sorted_places(keys)     on a CPU
                                                        ->   count_before(keys)      on a GPU
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.device.spec import DeviceSpec
from scheduler.ir.node import Node
from scheduler.ir.rewrite import SERIAL, SIMT, keep_form


def expand_alternatives(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node without ALTERNATIVES."""
    return keep_form(roots, SIMT if spec.is_simt else SERIAL)
