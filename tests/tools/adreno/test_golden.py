"""Golden figures: written, read again, compared; what is damaged is refused in one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.adreno import golden
from tests.adreno.golden import GoldenError, compare, failures_of, read, records_of, write
from tools.adreno.build import Failure
from tools.adreno.cost import GPU_TABLE, EntryCost, KernelCost
from tools.adreno.statistics import Slots

KERNEL = KernelCost(
    name="contract_1_64",
    origin=("/a/Conv", "/a/Relu"),
    launches=2,
    items=4096,
    instructions=500,
    registers=12,
    waves=16,
    spills=0,
    code_bytes=4000,
    beyond_cache=False,
    slots={"mac": 1000.0, "wait": 10.5},
    hot=Slots(mac=64, wait=2),
    is_exact=True,
    floor_ms=0.02,
    mac_ms=0.02,
)


def costs(*changes: dict[str, Any]) -> dict[str, EntryCost]:
    kernels = tuple(replace(KERNEL, **change) for change in changes)
    return {"": EntryCost(GPU_TABLE[630], "run", kernels, (), 2)}


def test_figures_are_written_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    found = costs({}, {"name": "contract_2_64", "hot": None})
    write("set", found, "a reason")
    assert list(read("set")) == ["/a/{Conv,Relu}", "/a/{Conv,Relu} #2"]
    assert compare(read("set"), found) == []
    text = (tmp_path / "set.json").read_text()
    assert '"reason": "a reason"' in text
    for content, message in (
        (text.replace('"gpu": 630', '"gpu": 660'), "expected figures of .*; write them with --upd"),
        (text[:-5], "expected JSON, found: "),
        (None, "expected golden figures, found none"),
    ):
        (tmp_path / "set.json").unlink()
        if content is not None:
            (tmp_path / "set.json").write_text(content)
        with pytest.raises(GoldenError, match=message):
            read("set")


@pytest.mark.parametrize(
    ("change", "is_worse", "text"),
    [
        ({"spills": 3}, True, "3 instructions spill registers"),
        ({"registers": 16}, True, "waves 16 -> 12"),
        ({"code_bytes": 8200}, True, "code of 8200 bytes is larger than the cache of 8192"),
        ({"slots": {"mac": 1000.0, "wait": 11.0}}, True, "slots 1010.5 -> 1011.0"),
        ({"launches": 3}, True, "launches 2 -> 3"),
        ({"slots": {"mac": 900.0}}, False, "slots 1010.5 -> 900.0"),
        ({"instructions": 480}, False, "instructions 500 -> 480"),
        ({"hot": Slots(mac=63, wait=3)}, False, "the hot loop is made of other slots"),
    ],
)
def test_a_difference_is_named(change: dict[str, Any], is_worse: bool, text: str) -> None:
    (difference,) = compare(records_of(costs({})), costs(change))
    assert difference.is_worse is is_worse
    word = "worse" if is_worse else "differs"
    assert difference.line().startswith(f"{word}: /a/{{Conv,Relu}} [/a/Conv, /a/Relu]: ")
    assert text in difference.text


def test_kernels_come_and_go_and_fail() -> None:
    new = {"origin": ("/b/Add",)}
    found = compare(records_of(costs({})), costs(new))
    assert [(d.kernel, d.is_worse, d.text) for d in found] == [
        ("/a/{Conv,Relu}", False, "gone"),
        ("/b/Add", False, "new"),
    ]
    spilled = compare(records_of(costs({})), costs({}, new | {"spills": 1}))
    assert [(d.is_worse, d.text) for d in spilled] == [
        (True, "new; 1 instructions spill registers")
    ]
    cost = replace(costs({})[""], failures=(Failure("k", "the compiler crashed (signal 11)"),))
    assert failures_of({"case": cost}) == ["not built: case k: the compiler crashed (signal 11)"]
