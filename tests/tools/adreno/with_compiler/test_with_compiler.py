"""With the real compiler, where it has been fetched: `make adreno`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adreno.golden import compare, records_of
from tests.tools.adreno.with_compiler.planted import WORSE, planted
from tools.adreno.build import Failure, build
from tools.adreno.cost import GPU_TABLE, EntryCost, entry_cost
from tools.adreno.sources import Source, kernel_sources
from tools.adreno.statistics import read_log
from tools.adreno.toolchain import Toolchain, find_toolchain
from tools.errors import ToolchainError, ToolchainMissingError

NODES = ("/planted/Conv", "/planted/Relu")


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    try:
        return find_toolchain()
    except ToolchainMissingError as error:
        pytest.skip(str(error))


def ignore(_: str, __: int, ___: int) -> None:
    """Report no progress."""


def cost_of(toolchain: Toolchain, text: str) -> EntryCost:
    """Return what a kernel named `planted` costs, launched once for a picture of 64 x 64."""
    manifest: dict[str, Any] = {
        "programs": [{"source": text, "options": ""}],
        "kernels": [
            {
                "name": "planted",
                "program": 0,
                "origin": NODES,
                "global": (4096, 1, 1),
                "local": (64, 1, 1),
                "code": {"start": text.index("__kernel"), "end": len(text)},
            }
        ],
        "entries": {"run": {"launches": [0]}},
    }
    sources = kernel_sources(manifest)
    built = build(toolchain, sources.values(), 630, ignore)
    return entry_cost(manifest, "run", sources, built, GPU_TABLE[630])


@pytest.fixture(scope="module")
def good(toolchain: Toolchain) -> EntryCost:
    return cost_of(toolchain, planted(""))


def test_a_kernel_is_compiled_and_counted(good: EntryCost) -> None:
    (kernel,) = good.kernels
    assert kernel.is_exact
    # 16 groups of 4 channels, 3 rows, 4 products of 4 numbers, of which the sums are separate.
    macs = kernel.slots["mac"] + kernel.slots["alu"]
    assert macs >= 16 * 3 * 16
    assert (kernel.spills, kernel.beyond_cache) == (0, False)
    assert compare(records_of({"": good}), {"": good}) == []


@pytest.mark.parametrize("fault", WORSE)
def test_a_planted_loss_is_caught(toolchain: Toolchain, good: EntryCost, fault: str) -> None:
    costs = {"": cost_of(toolchain, planted(fault))}
    (difference,) = compare(records_of({"": good}), costs)
    assert difference.is_worse
    assert f"[{', '.join(NODES)}]" in difference.line()
    now, before = costs[""].kernels[0], good.kernels[0]
    if fault == "registers of another class":
        assert now.waves < before.waves
        assert f"waves {before.waves} -> {now.waves}" in difference.text
    else:
        assert sum(now.slots.values()) > sum(before.slots.values())


def test_a_refused_source_is_one_line(toolchain: Toolchain) -> None:
    text = "__kernel void k(__global float* out) { out[0] = missing; }"
    with pytest.raises(ToolchainError, match="use of undeclared identifier 'missing'"):
        toolchain.compile(text)
    (failure,) = build(toolchain, [Source("k", text)], 630, ignore).values()
    assert isinstance(failure, Failure)
    assert "undeclared identifier 'missing'" in failure.problem


def test_a_kernel_does_not_depend_on_those_beside_it(toolchain: Toolchain) -> None:
    other = "__kernel void other(__global float* out) { out[get_global_id(0)] = 1.0f; }\n"
    alone = {k.name: k for k in read_log(toolchain.compile(planted("")))}
    together = {k.name: k for k in read_log(toolchain.compile(other + planted("")))}
    assert set(together) == {"other", "planted"}
    assert together["planted"] == alone["planted"]


def test_the_compiler_is_not_found_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ToolchainMissingError, match="fetch it with `make adreno-tools`"):
        find_toolchain(tmp_path)
