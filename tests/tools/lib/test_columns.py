"""Names of columns, over the whole schema: every value has one of its own, and comes back by it."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.log_writer import LogWriter
from cereal.schema import new_event, read_event
from tests.tools.conftest import Modeld
from tests.tools.lib.filled import MEMBERS, filled, name_of
from tools.compare.fields import layout_of
from tools.describe.dump_columns import TIME, VALID, column_name
from tools.messages.message_values import flatten_message

FEW = ["can", "controlsState", "initData", "liveParameters", "logMessage", "ubloxGnss"]


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_every_value_of_every_message_has_a_name_of_its_own() -> None:
    owners: dict[str, tuple[Any, ...]] = {}
    for member in MEMBERS:
        envelope = {f"{member}.{name}" for name in (TIME, VALID)}
        for data, leaves in filled(member):
            event = read_event(data)
            found = flatten_message(event)
            named = {column_name(member, path): plain(value) for path, value in found.items()}
            assert named == {name_of(member, leaf): value for leaf, value in leaves.items()}
            assert len(named) == len(found) == len(leaves)
            for leaf in leaves:
                assert owners.setdefault(name_of(member, leaf), (member, leaf)) == (member, leaf)
            lengths = {f"{name}.length" for name in named}
            assert not (envelope | lengths) & set(named)
            # What is compared: one place for each element.
            layout = layout_of(event)
            for places in (layout.numbers, layout.discrete):
                assert len({place.exact for place in places}) == len(places)
                # The Event's own flag is ``.valid`` there.
                assert not any(place.exact.startswith(".") for place in places)
    # The columns in front of a CSV are of no service.
    assert not {"service", "logMonoTime", "valid"} & set(owners)


@pytest.mark.parametrize("members", [FEW, pytest.param(MEMBERS, marks=pytest.mark.slow)])
def test_values_come_back_from_npz_and_csv(
    members: list[str], tmp_path: Path, modeld: Modeld
) -> None:
    log = tmp_path / "filled"
    rows = [(member, data, leaves) for member in members for data, leaves in filled(member)]
    with LogWriter(log) as writer:
        for _, data, _ in rows:
            writer.write(data)
    dump = ("inspect", log, "--dump", "--data", "base64", "--output")
    assert modeld(0, *dump, tmp_path / "out.npz").err == ""
    assert modeld(0, *dump, tmp_path / "out.csv").err == ""
    with np.load(tmp_path / "out.npz") as archive:
        assert len(archive.files) == len(set(archive.files))
        arrays = {name: archive[name] for name in archive.files}
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    cells = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    assert len(set(lines[0])) == len(lines[0])
    at: dict[str, int] = {}
    for (member, _, leaves), row in zip(rows, cells, strict=True):
        index = at[member] = at.get(member, -1) + 1
        for leaf, value in leaves.items():
            name, is_list = name_of(member, leaf), isinstance(value, list)
            if isinstance(value[0] if is_list else value, bytes):
                continue  # as base64
            assert arrays[name][index].tolist() == value, name
            texts = [row[f"{name}[{i}]"] for i in range(len(value))] if is_list else [row[name]]
            assert texts == [
                str(int(one) if isinstance(one, bool) else one)
                for one in (value if is_list else [value])
            ]


def test_an_events_own_flag_is_not_that_of_its_message(tmp_path: Path, modeld: Modeld) -> None:
    """The Event says of eight messages that they are not valid; the messages say otherwise."""
    log, output = tmp_path / "log.zst", tmp_path / "y.npz"
    with LogWriter(log) as writer:
        for index in range(20):
            event = new_event("liveParameters", mono_time_ns=100 + index, valid=index >= 8)
            event.liveParameters.valid = True
            writer.write(event.to_bytes())
    said = modeld(0, "inspect", log, "--dump", "--service", "liveParameters", "--output", output)
    assert said.err == ""
    with np.load(output) as arrays:
        assert len(set(arrays.files)) == len(arrays.files)
        assert arrays["liveParameters.__valid"].tolist() == [False] * 8 + [True] * 12
        assert arrays["liveParameters.valid"].tolist() == [True] * 20
        assert arrays["liveParameters.__logMonoTime"].tolist() == list(range(100, 120))
