"""``modeld regress --monitoring``: driverStateV2 is kept and compared like driving outputs."""

from pathlib import Path

import numpy as np
import pytest

from cereal.schema import log
from runtime.format.artifact import read_artifact, write_artifact
from tests.tools.conftest import Modeld
from tests.tools.driver_drive import driver_segment, driving_model, small_monitoring
from tests.tools.regress.conftest import changes
from tools.compare.tolerances import read_tolerances
from tools.playback.outcome import MONITORING_INPUT_NAMES
from tools.regress.judge.packing import unpack
from tools.regress.judge.reference import ReferenceStore

pytestmark = pytest.mark.opencl


@pytest.mark.slow
def test_driver_state_is_kept_and_what_changed_is_named(
    modeld: Modeld, tmp_path: Path, here: None
) -> None:
    del here
    words = ["--model", driving_model(), "--drives", driver_segment(), "--no-timing"]
    words = ["regress", *words, "--reference", tmp_path / "references"]
    update = ("--update", "--reason", "the first one")
    # A drive without monitoring has a reference of its own, without anything of it.
    modeld(0, *words, *update)
    (plain,) = ReferenceStore(tmp_path / "references").all()
    assert unpack(plain.outputs).frames.driver is None
    assert "driverStateV2" not in unpack(plain.outputs).services
    beside = ("--monitoring", small_monitoring())
    said = modeld(4, *words, *beside).out
    assert "another interface, split-2025 instead of split-2025 and dmonitoring-2025" in said
    modeld(0, *words, *beside, *update)
    figures = modeld(0, *words, *beside, "--bit-exact", "--json").json
    assert figures["drives"][0]["identical"]
    assert figures["model"]["monitoring"] == "dmonitoring.pkl"
    modeld(0, *words)
    (path,) = set((tmp_path / "references").iterdir()) - {tmp_path / "references" / plain.file_name}
    (kept,) = [one for one in ReferenceStore(path.parent).all() if one.file_name == path.name]
    packed = unpack(kept.outputs)
    assert packed.services.count("driverStateV2") == 8
    assert packed.frames.driver is not None
    assert set(packed.frames.driver.input_crc) == set(MONITORING_INPUT_NAMES)
    # The same model, to all appearances, that says something else.
    artifact = read_artifact(small_monitoring())
    data = bytearray(artifact.data)
    largest = max(
        (one for one in artifact.manifest.buffers if one.kind == "weight"), key=lambda one: one.size
    )
    np.frombuffer(data, np.float32, largest.size // 4, largest.offset)[:] *= 1.001
    write_artifact(tmp_path / "other.pkl", dict(artifact.manifest.raw), bytes(data))
    found = changes(modeld(1, *words, "--monitoring", tmp_path / "other.pkl", "--json"))
    assert found[0].startswith("weights: weight monitoring ")
    assert all("driverStateV2" in one for one in found[1:])
    assert any("faceOrientation: value in 8 frames from 0 on" in one for one in found)


def test_the_table_of_tolerances_knows_every_number_of_driver_state() -> None:
    table = read_tolerances()
    seat = log.DriverStateV2.DriverData.schema.fields
    names = [*(f"leftDriverData.{name}" for name in seat), "poorVisionProb", "wheelOnRightProb"]
    rules = {name: table.of("driverStateV2", name) for name in names}
    assert [name for name, one in rules.items() if not (one.absolute or one.relative)] == []
