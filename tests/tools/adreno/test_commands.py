"""`modeld inspect --adreno` and fetching, where something is missing: one line each."""

import importlib.util
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from runtime.format.artifact import write_artifact
from scheduler.context import CompileContext
from scheduler.debug.viz import page
from scheduler.device.spec import SPECS
from tests.scheduler.support.programs import emitted, x
from tests.tools.adreno.stand_in import stand_in
from tools.adreno.cost import SLOTS, cost_of, lines, page_table, plain, sections
from tools.adreno.toolchain import fetch_toolchain
from tools.cli import main
from tools.errors import ArtifactMismatchError, MissingPackageError, ToolchainError, UsageError


def ignore(_: str, __: int, ___: int) -> None:
    """Report no progress."""


def test_a_machine_that_cannot_run_it_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "aarch64")
        with pytest.raises(ToolchainError, match="an x86-64 machine to run qemu on, found aarch64"):
            fetch_toolchain(ignore, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(MissingPackageError, match=r"pip install 'modeld\[linker\]'"):
            fetch_toolchain(ignore, tmp_path)
    assert list(tmp_path.iterdir()) == []


def manifest_for(target: str) -> tuple[dict[str, Any], bytes]:
    outputs = {"y": x(64, 64).exp().sum(1) * 2.0}
    made = emitted(outputs, context=CompileContext(SPECS[target]))
    return made.manifest, made.data


def test_an_artifact_is_described_in_tables_data_and_on_the_page(tmp_path: Path) -> None:
    manifest, _ = manifest_for("adreno")
    cost = cost_of(manifest, None, stand_in(tmp_path), 630, ignore)
    data = json.loads(json.dumps(plain(cost)))
    assert (data["gpu"], data["entry"], data["failures"]) == (630, "run", [])
    assert data["spills"] == len(data["kernels"]) == len(cost.kernels)
    assert data["estimate"] == SLOTS.plain(cost.floor_ms)
    (kernel, *_) = data["kernels"]
    assert kernel["slots"]["mac"] == 12
    assert kernel["hot"]["mac"] == 4
    (table,) = sections(cost)
    assert len(table.header) == len(table.rows[0])
    text = " ".join(lines(cost))
    assert f"with spills {len(cost.kernels)}, larger than the instruction cache 0" in text
    html = page(manifest, tables={cost.entry: page_table(cost)})
    assert "run on an Adreno 630" in html
    assert "hot loop" in html
    # Neither lanes nor clock of a 740 are known: counts alone.
    assert plain(cost_of(manifest, None, stand_in(tmp_path), 740, ignore))["floor_ms"] is None


def test_what_cannot_be_described_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toolchain = stand_in(tmp_path)
    with pytest.raises(ArtifactMismatchError, match="found one for cpu; compile it with --target"):
        cost_of(manifest_for("cpu")[0], None, toolchain, 630, ignore)
    manifest, data = manifest_for("adreno")
    with pytest.raises(UsageError, match="--entry walk: expected one of run"):
        cost_of(manifest, "walk", toolchain, 630, ignore)

    path = tmp_path / "a.pkl"
    write_artifact(path, manifest, data)
    for arguments, code, message in (
        ([str(path), "--adreno"], 3, "expected the compiler for Adreno"),
        ([str(path), "--adreno", "--viz", "x.html"], 2, "--viz needs --schedule"),
        ([str(path), "--adreno", "650"], 2, "unknown 650 (did you mean 660?)"),
    ):
        try:
            found = main(["inspect", *arguments])
        except SystemExit as error:
            found = int(str(error.code))
        assert (found, message in capsys.readouterr().err) == (code, True)
