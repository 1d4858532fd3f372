"""With the real compiler, where it has been fetched: `make adreno`."""

from pathlib import Path
from typing import Any

import pytest

from tests.adreno.golden import compare, records_of
from tests.tools.adreno.with_compiler.planted import WORSE, planted
from tools.adreno.build import Built, Failure, Source, build, kernel_sources
from tools.adreno.cost import GPU_TABLE, EntryCost, entry_cost
from tools.adreno.statistics import read_log
from tools.adreno.toolchain import Toolchain, find_toolchain
from tools.errors import ToolchainMissingError

REFUSED = Source("k", "__kernel void k(__global float* out) { out[0] = missing; }")
NODES = ("/planted/Conv", "/planted/Relu")


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    try:
        return find_toolchain()
    except ToolchainMissingError as error:
        pytest.skip(str(error))


def ignore(_: str, __: int, ___: int) -> None:
    """Report no progress."""


def manifest_of(text: str) -> dict[str, Any]:
    """Return a manifest that launches a kernel named `planted` once, on a picture of 64 x 64."""
    start = text.index("__kernel")
    kernel = {"name": "planted", "program": 0, "origin": NODES}
    kernel |= {"global": (4096, 1, 1), "local": (64, 1, 1)}
    return {
        "programs": [{"source": text, "options": ""}],
        "kernels": [kernel | {"code": {"start": start, "end": len(text)}}],
        "entries": {"run": {"launches": [0]}},
    }


@pytest.fixture(scope="module")
def built(toolchain: Toolchain) -> dict[Source, Built]:
    """Return all kernels of these tests: a start of the compiler takes longer than they do."""
    manifests = [manifest_of(planted(fault)) for fault in ("", *WORSE)]
    sources = [kernel_sources(manifest)["planted"] for manifest in manifests]
    return build(toolchain, [*sources, REFUSED], 630, ignore)


def cost_of(built: dict[Source, Built], fault: str) -> EntryCost:
    manifest = manifest_of(planted(fault))
    return entry_cost(manifest, "run", kernel_sources(manifest), built, GPU_TABLE[630])


def test_a_kernel_is_compiled_and_counted(built: dict[Source, Built]) -> None:
    good = cost_of(built, "")
    (kernel,) = good.kernels
    assert kernel.is_exact
    # 16 groups of 4 channels, 3 rows, 4 products of 4 numbers; products and sums may be separate.
    assert kernel.slots["mac"] + kernel.slots["alu"] >= 16 * 3 * 16
    assert (kernel.spills, kernel.beyond_cache) == (0, False)
    assert compare(records_of({"": good}), {"": good}) == []


@pytest.mark.parametrize("fault", WORSE)
def test_a_planted_loss_is_caught(built: dict[Source, Built], fault: str) -> None:
    good, bad = cost_of(built, ""), cost_of(built, fault)
    (difference,) = compare(records_of({"": good}), {"": bad})
    assert difference.is_worse
    assert f"[{', '.join(NODES)}]" in difference.line()
    now, before = bad.kernels[0], good.kernels[0]
    if fault == "registers of another class":
        assert now.waves < before.waves
        assert f"waves {before.waves} -> {now.waves}" in difference.text
    else:
        assert sum(now.slots.values()) > sum(before.slots.values())


def test_a_refused_source_is_one_line(built: dict[Source, Built]) -> None:
    failure = built[REFUSED]
    assert isinstance(failure, Failure)
    assert "use of undeclared identifier 'missing'" in failure.problem


def test_a_kernel_does_not_depend_on_those_beside_it(
    toolchain: Toolchain, built: dict[Source, Built]
) -> None:
    other = "__kernel void other(__global float* out) { out[get_global_id(0)] = 1.0f; }\n"
    together = {k.name: k for k in read_log(toolchain.compile(other + planted("")))}
    assert set(together) == {"other", "planted"}
    assert together["planted"] == built[kernel_sources(manifest_of(planted("")))["planted"]]


def test_the_compiler_is_not_found_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ToolchainMissingError, match="fetch it with `make adreno-tools`"):
        find_toolchain(tmp_path)
