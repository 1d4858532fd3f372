"""Fields of the live view: which there are, what they are called, what they hold; layouts."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cereal.errors import TransportError
from cereal.schema import log, new_event
from cereal.services import SERVICES
from cereal.transport.base import MemoryTransport
from modeld.bus import DAEMON_SERVICES
from tests.tools.live.speaker import message, unpacked
from tools.errors import UsageError
from tools.live.bus_feed import Delivery, LiveOptions
from tools.live.fields import (
    MAX_FIELDS,
    FieldSubscriptions,
    Sample,
    catalogue,
    parse_field,
    parse_fields,
    read_fields,
    schema_notes,
    unit_of,
)
from tools.live.messages import CameraTable, Json
from tools.live.viewers import LayoutError, LiveSource, Viewer, load_layout, parse_layout
from tools.messages.message_values import fields_of


def layout(**changes: object) -> str:
    """Return the text of a layout, with other values than usual."""
    usual = {"format": "modeld view layout", "version": 1, "hidden": ["stages"]}
    fields = [{"field": "carState.vEgo", "as": "plot"}]
    return json.dumps({**usual, "fields": fields, **changes})


def test_all_services_have_fields_with_units_and_names() -> None:
    found = {one["field"]: one for one in catalogue(SERVICES)}
    assert {field.partition(".")[0].partition("[")[0] for field in found} >= {
        "carState", "modelV2", "modeldHealth", "pandaStates", "gpsLocation"
    }  # fmt: skip
    assert found["carState.vEgo"] == {
        "field": "carState.vEgo", "kind": "number", "unit": "m/s", "about": "m/s, filtered"
    }  # fmt: skip
    units = {
        "carState.steeringAngleDeg": "°",
        "carState.wheelSpeeds.fl": "m/s",
        "modelV2.laneLines[].y[]": "m",
        "modelV2.position.t[]": "s",
        "modelV2.action.desiredCurvature": "1/m",
        "deviceState.thermalZones[].temp": "°C",
    }
    assert {field: found[field]["unit"] for field in units} == units
    assert "unit" not in found["modelV2.leadsV3[].prob"]
    assert found["carState.gearShifter"]["names"][:4] == ["unknown", "park", "drive", "neutral"]
    assert found["carState.leftBlinker"]["kind"] == "bool"
    # Every path of the list is one that can be looked at.
    assert all(parse_field(field.replace("[]", "[0]")) for field in found)


def test_comments_of_the_schema_are_found_where_they_stand() -> None:
    notes = schema_notes()
    assert notes["log.capnp", "ModelDataV2.LeadDataV3", "a"] == "m/s^2"
    assert notes["car.capnp", "CarState.WheelSpeeds", ""] == "m/s"
    assert unit_of("x", "m ahead of the camera") == "m"
    assert unit_of("x", "minutes of sleep") == unit_of("x", "") == ""
    assert unit_of("cumLagMs", "") == "ms"


def structures(schema: Any) -> Iterator[Any]:
    """Yield a structure of the schema and all that it holds."""
    yield schema
    for field in schema.fields.values():
        kind = field.proto.slot.type
        while kind.which() == "list":
            kind = kind.list.elementType
        if kind.which() == "struct":
            held = field.schema
            while hasattr(held, "elementType"):
                held = held.elementType
            yield from structures(held)


def test_each_field_that_the_daemons_publish_has_its_unit_or_meaning_in_the_schema() -> None:
    notes, silent, seen = schema_notes(), set(), 0
    for service in DAEMON_SERVICES:
        for schema in structures(log.Event.schema.fields[service].schema):
            file, _, name = str(schema.node.displayName).rpartition("/")[2].partition(":")
            fields = {(file, name, field) for field in schema.fields}
            silent |= set() if (file, name, "") in notes else fields - notes.keys()
            seen += len(fields)
    assert seen > 200
    assert not silent, "write a comment behind these fields"


def test_a_field_holds_what_its_message_says() -> None:
    paths = [
        "modelV2.position.x[1]", "modelV2.position.x[77]", "modelV2.laneLines[3].y[0]",
        "modelV2.laneLineProbs", "modelV2.frameId", "modelV2.confidence", "modelV2.action",
        "modelV2.laneLines[9].y[0]", "modelV2.rawPredictions", "modelV2.meta.hardBrakePredicted",
    ]  # fmt: skip
    values = read_fields(message("modelV2", 12, 0), parse_fields(paths))
    assert values == {
        "modelV2.position.x[1]": 0.1875,
        "modelV2.position.x[77]": None,
        "modelV2.laneLines[3].y[0]": pytest.approx(5.4),
        "modelV2.laneLineProbs": "[0.4, 0.95, 0.9, 0.3]",
        "modelV2.frameId": 12,
        "modelV2.confidence": "red",
        "modelV2.action": "desiredCurvature 0.000673177, desiredAcceleration 0.540302, "
        "shouldStop False",
        "modelV2.laneLines[9].y[0]": None,
        "modelV2.rawPredictions": "0 bytes",
        "modelV2.meta.hardBrakePredicted": False,
    }


def test_a_service_that_is_a_list_has_fields_by_index() -> None:
    event = new_event("pandaStates", mono_time_ns=1, size=2)
    event.pandaStates[1].voltage = 12_100
    found = read_fields(event.to_bytes(), parse_fields(["pandaStates[1].voltage", "pandaStates"]))
    assert found["pandaStates[1].voltage"] == 12_100
    assert str(found["pandaStates"]).startswith("[0].voltage 0, ")


@pytest.mark.parametrize(
    "text",
    ["", "carState", "carState.nothing", "nothing.vEgo", "carState..vEgo", "carState.vEgo.x", 3,
     "carState.vEgo[0", "__class__.x", "carState.__class__", "modelV2." + "x." * 200],
)  # fmt: skip
def test_what_is_no_field_is_not_looked_at(text: object) -> None:
    # All of a service is one that can be.
    assert (parse_field(text) is None) == (text != "carState")
    assert len(parse_fields([text] * 50)) <= 1
    assert parse_fields(text) == ()


def test_no_more_fields_than_a_page_may_have() -> None:
    many = [f"modelV2.position.x[{at}]" for at in range(40)]
    assert len(parse_fields(many)) == MAX_FIELDS


def test_a_layout_is_taken_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text(layout())
    assert load_layout(path) == json.loads(layout())
    assert parse_layout('{"format": "modeld view layout", "version": 1}')["fields"] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected JSON"),
        ("[" * 100_000, "at most 12288 bytes, found 100000"),
        ("[" * 12_000, "expected JSON"),
        ("[]", 'expected "format"'),
        (layout(version=2), "expected version 1, found 2"),
        (layout(script="x"), "found 'script'"),
        (layout(fields=[{}] * 17), "list of at most 16"),
        (layout(fields=[{"field": "carState.vEgo", "as": "html"}]), 'expected "field" and "as"'),
        (layout(fields=[{"field": "carState.nope", "as": "plot"}]), "found 'carState.nope'"),
        (layout(hidden=["body"]), "hidden: expected some of camera"),
        (layout(hidden={}), "hidden: expected some of camera"),
    ],
)
def test_what_is_no_layout_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        parse_layout(text)
    path = tmp_path / "layout.json"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_layout(path)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("save one on the page")


def test_a_layout_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_layout(tmp_path / "none.json")


def test_fields_are_heard_while_somebody_looks_at_them() -> None:
    transport = MemoryTransport()
    publisher = transport.publisher("carState")
    ear = FieldSubscriptions(transport)
    fields = {one.text: one for one in parse_fields(["carState.vEgo", "carState.leftBlinker"])}
    ear.listen(fields, 0.0)
    publisher.send(message("carState", 0, 1))
    publisher.send(b"no message at all")
    ear.listen(fields, 1.25)
    assert ear.take() == [("carState.vEgo", 1.25, 20.0), ("carState.leftBlinker", 1.25, True)]
    # Whom nobody looks at is not listened to.
    ear.listen({}, 2.0)
    publisher.send(message("carState", 0, 1))
    ear.listen(fields, 3.0)
    assert ear.take() == []


def test_a_field_that_nobody_sends_or_that_cannot_be_heard_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = MemoryTransport()
    ear = FieldSubscriptions(transport)
    members = {field.name for field in fields_of(log.Event.schema) if field.in_union}
    # The schema has members of years ago that are on no bus.
    old = parse_fields(sorted(members - SERVICES.keys()))
    assert old
    ear.listen({one.text: one for one in old}, 0.0)
    asked = []

    def refuse(service: str, **_: object) -> None:
        asked.append(service)
        raise TransportError("no room")

    monkeypatch.setattr(transport, "subscriber", refuse)
    fields = {one.text: one for one in parse_fields(["carState.vEgo"])}
    ear.listen(fields, 0.0)
    ear.listen(fields, 1.0)
    assert (asked, ear.take()) == (["carState"], [])


def test_a_viewer_gets_the_samples_of_its_own_fields() -> None:
    source = LiveSource(LiveOptions("a bus", CameraTable(), 10.0, 960), {"layout": None})
    moments: dict[str, tuple[Json, bytes]] = {"road": ({"kind": "moment"}, b"")}

    async def watch() -> None:
        viewer = Viewer()
        source.open(viewer)
        viewer.order(json.dumps({"fields": ["carState.vEgo", "carState.nope", 7]}))
        assert list(source.fields()) == ["carState.vEgo"]
        samples: list[Sample] = [("carState.vEgo", 1.0, 20.0), ("carState.aEgo", 1.0, 0.5)]
        source.deliver(Delivery(1, [], moments, samples))
        found, _ = unpacked(await source.next(viewer, None))
        assert found["samples"] == {"carState.vEgo": [[1.0], [20.0]]}
        viewer.order(json.dumps({"got": 1}))
        # What a page loads is judged here, and answered before anything else.
        viewer.order(json.dumps({"layout": layout(version=9)}))
        viewer.order(json.dumps({"layout": layout()}))
        answers = [unpacked(await source.next(viewer, None))[0] for _ in range(2)]
        assert "expected version 1, found 9" in answers[0]["error"]
        assert answers[1]["layout"]["fields"] == [{"field": "carState.vEgo", "as": "plot"}]
        source.close(viewer, None)
        assert source.fields() == {}

    asyncio.run(watch())


def test_what_a_page_asks_for_is_bounded() -> None:
    viewer = Viewer()
    for chunk in range(1000):
        viewer.order(json.dumps({"series": {"log": 0, "chunk": chunk, "fields": []}}))
        viewer.order(json.dumps({"layout": "x"}))
    viewer.order('{"series": {"log": "0", "chunk": null}}')
    assert len(viewer.series) == len(viewer.replies) == 32
