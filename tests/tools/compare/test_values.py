"""What differs inside messages of the same frame."""

import math
from typing import Any

import numpy as np
import pytest

from cereal.schema import log, new_event, read_event
from tests.tools.compare.made_logs import SERVICES, Change, drive
from tools.compare.compare import CompareOptions, compare_events
from tools.compare.fields import cleared, spans_of
from tools.compare.findings import Comparison, Finding
from tools.compare.tolerances import Tolerance, Tolerances, read_tolerances

FRAMES = range(100, 140)


def compared(change: Change, **options: Any) -> Comparison:
    return compare_events(drive(FRAMES), drive(FRAMES, change), CompareOptions(**options))


def the_only(comparison: Comparison) -> Finding:
    assert len(comparison.findings) == 1, comparison.findings
    return comparison.findings[0]


def on_model(frame: int | None, act: Any) -> Change:
    """Change modelV2 of one frame, or of all."""

    def change(service: str, frame_id: int, event: Any) -> None:
        if service == "modelV2" and frame in (None, frame_id):
            act(event)

    return change


def test_equal_logs_agree() -> None:
    comparison = compare_events(drive(FRAMES), drive(FRAMES))
    assert comparison.passed
    assert (comparison.frames, comparison.skipped, comparison.messages) == (
        40,
        0,
        40 * len(SERVICES),
    )
    assert all(field.differing == 0 for field in comparison.statistics)
    position = next(s for s in comparison.statistics if s.field == "position.x")
    assert position.values == 40 * 33
    assert position.left_rms == pytest.approx(28, abs=2)  # 15 m/s * rms of 0 .. 3.2 s
    assert not comparison.series

    # Measured times and stamps are not compared.
    def change(service: str, _frame_id: int, event: Any) -> None:
        event.logMonoTime += 7
        if service != "cameraOdometry":
            getattr(event, service).modelExecutionTime = 9.0

    for bit_exact in (False, True):
        tolerances = read_tolerances(bit_exact=bit_exact)
        assert compared(change, tolerances=tolerances).passed


def test_the_place_and_the_worst_frame_are_named() -> None:
    def act(event: Any) -> None:
        frame_id = event.modelV2.frameId
        if frame_id in (110, 120, 130):
            event.modelV2.laneLines[1].y[32] += {110: 0.5, 120: -2.0, 130: 1.0}[frame_id]

    finding = the_only(compared(on_model(None, act)))
    assert (finding.kind, finding.service, finding.field) == ("value", "modelV2", "laneLines[].y")
    assert (finding.frames, finding.first_frame, finding.worst_frame) == (3, 110, 120)
    assert finding.worst_place == "laneLines[1].y[32]"
    assert finding.worst_absolute == pytest.approx(2.0, abs=1e-6)
    assert float(finding.right) - float(finding.left) == pytest.approx(-2.0, abs=1e-6)


@pytest.mark.parametrize(
    ("act", "kind", "field"),
    [
        (lambda e: setattr(e.modelV2, "confidence", "red"), "value", "confidence"),
        (lambda e: setattr(e.modelV2.meta, "hardBrakePredicted", True), "value", "meta."),
        (lambda e: setattr(e, "valid", False), "value", ".valid"),
        (lambda e: setattr(e.modelV2, "timestampEof", 1), "value", "timestampEof"),
        (lambda e: setattr(e.modelV2, "frameIdExtra", 3), "value", "frameIdExtra"),
        (lambda e: setattr(e.modelV2.position, "x", [1.0] * 32), "length", "position.x"),
        (lambda e: e.modelV2.init("laneLines", 3), "length", "laneLines"),
        (lambda e: e.modelV2.init("laneLines", 0), "length", "laneLines"),
        (lambda e: e.modelV2.init("leadsV3", 1), "length", "leadsV3"),
        (lambda e: setattr(e.modelV2, "laneLineProbs", [0.0] * 4), "value", "laneLineProbs"),
    ],
)
def test_flags_enumerants_counts_and_lengths_must_be_equal(act: Any, kind: str, field: str) -> None:
    comparison = compared(on_model(107, act))
    finding = comparison.findings[0]
    assert finding.kind == kind
    assert finding.field.startswith(field)
    assert (finding.frames, finding.first_frame) == (1, 107)


def plus(field: str, amount: int) -> Change:
    return on_model(None, lambda e: setattr(e.modelV2, field, getattr(e.modelV2, field) + amount))


@pytest.mark.parametrize(
    ("left", "right", "differs"),
    [
        (math.nan, math.nan, False),
        (math.inf, math.inf, False),
        (-math.inf, -math.inf, False),
        (math.nan, 1.0, True),
        (1.0, math.nan, True),
        (math.inf, -math.inf, True),
        (math.inf, math.nan, True),
        (math.inf, 3.4e38, True),
    ],
)
def test_non_finite_values_equal_only_themselves(left: float, right: float, differs: bool) -> None:
    def having(value: float) -> list[bytes]:
        return drive(FRAMES, on_model(110, lambda e: e.modelV2.position.x.__setitem__(3, value)))

    comparison = compare_events(having(left), having(right))
    assert [finding.kind for finding in comparison.findings] == (["nonfinite"] if differs else [])
    if differs:
        assert comparison.findings[0].worst_place == "position.x[3]"
    assert all(math.isfinite(field.rms_difference) for field in comparison.statistics)


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        (100.0, 101.0, False),  # 1 <= 1.01
        (100.0, 101.25, True),  # 1.25 > 1.0125
        (0.0, 0.0078125, False),  # below the absolute one
        (0.0, 0.015625, True),
        (-0.5, 0.5, True),
        (-100.0, -101.0, False),
    ],
)
def test_the_rule_is_that_of_the_reference(a: float, b: float, differs: bool) -> None:
    """|a - b| > max(tol, tol * max(|a|, |b|)): by hand, tol = 1e-2."""
    tolerances = Tolerances([(["*"], Tolerance(1e-2, 1e-2, reason="as model_replay"))])
    events = []
    for value in (a, b):
        event = new_event("cameraOdometry", mono_time_ns=1, valid=True)
        event.cameraOdometry.trans = [value]
        events.append(event.to_bytes())
    options = CompareOptions(tolerances=tolerances)
    assert compare_events(events[:1], events[1:], options).passed is not differs


def test_bit_exact_sees_the_last_bit_and_the_sign_of_zero() -> None:
    def last_bit(event: Any) -> None:
        value = np.float32(event.modelV2.position.x[32])
        event.modelV2.position.x[32] = float(np.nextafter(value, np.float32(1e9)))

    def having(z: float) -> list[bytes]:
        return drive(FRAMES, on_model(110, lambda e: setattr(e.modelV2.position, "z", [z])))

    exact = CompareOptions(tolerances=read_tolerances(bit_exact=True))
    assert compared(on_model(110, last_bit)).passed
    assert the_only(compared(on_model(110, last_bit), tolerances=exact.tolerances)).frames == 1
    assert compare_events(having(0.0), having(-0.0)).passed
    assert the_only(compare_events(having(0.0), having(-0.0), exact)).worst_place == "position.z[0]"


def test_ignored_fields_are_left_out() -> None:
    def act(event: Any) -> None:
        event.modelV2.position.x = [0.0] * 33
        event.modelV2.frameDropPerc = 20.0

    ignore = read_tolerances(ignore=["modelV2.position*", "frameDropPerc"])
    assert not compared(on_model(None, act)).passed
    assert compared(on_model(None, act), tolerances=ignore).passed
    # Integers state how far they are apart.
    finding = the_only(compared(plus("timestampEof", 3)))
    assert (finding.frames, finding.worst_absolute, finding.limit) == (40, 3.0, "exact")


def test_one_frame_late_is_found_in_every_output() -> None:
    """The frame ids are right, what belongs to them is that of the frame before."""
    late = [read_event(data).as_builder() for data in drive(range(99, 139))]
    for event in late:
        body = getattr(event, str(event.which()))
        body.frameId += 1
        if str(event.which()) != "drivingModelData":
            body.timestampEof += 50_000_000
    comparison = compare_events(drive(FRAMES), [event.to_bytes() for event in late])
    fields = {(f.service, f.field): f.frames for f in comparison.findings}
    assert (fields["modelV2", "position.y"], fields["modelV2", "laneLines[].y"]) == (40, 40)
    assert fields["cameraOdometry", "trans"] >= 38  # where the sine turns, neighbours are close
    assert fields["drivingModelData", "laneLineMeta.leftY"] >= 38


def test_raw_predictions_are_compared_as_numbers() -> None:
    def raw(off: float) -> list[bytes]:
        values = np.linspace(-5, 5, 1000, dtype=np.float32)
        values[700] += off
        data = values.tobytes()
        return drive(FRAMES, on_model(None, lambda e: setattr(e.modelV2, "rawPredictions", data)))

    assert compare_events(raw(0.0), raw(2e-5)).passed
    finding = the_only(compare_events(raw(0.0), raw(1e-2)))
    assert (finding.worst_place, finding.frames) == ("rawPredictions[700]", 40)


def test_messages_whose_inside_is_damaged_are_findings() -> None:
    events = drive(FRAMES)
    broken = bytearray(events[30])
    broken[40:160] = b"\xff" * 120  # numbers and pointers of the structure
    comparison = compare_events(events, [*events[:30], bytes(broken), *events[31:]])
    kinds = {finding.kind: finding for finding in comparison.findings}
    # The frame id is damaged too, so that no message of the right log is frame 110's.
    assert (set(kinds), kinds["missing"].first_frame) == ({"missing", "extra"}, 110)
    broken = bytearray(events[30])
    at = broken.index(bytes([33 << 3 & 0xFF | 4, 1, 0, 0]))  # a list pointer: 33 numbers of 4 bytes
    broken[at : at + 4] = b"\xff\xff\xff\x7f"
    finding = the_only(compare_events(events, [*events[:30], bytes(broken), *events[31:]]))
    assert (finding.kind, finding.first_frame, finding.right) == ("type", 110, "damaged")


def test_undeclared_content_and_another_member_of_a_union_are_found() -> None:
    def undeclared(signal: int) -> bytes:
        """Return a sentinel that claims to be of a service of which nothing is declared."""
        event = new_event("sentinel", mono_time_ns=1, valid=True)
        event.sentinel.signal = signal
        data = bytearray(event.to_bytes())
        # After the frame and the root pointer of a word each.
        at = 16 + 2 * log.Event.schema.node.struct.discriminantOffset
        data[at : at + 2] = log.Event.schema.fields[
            "featuresDEPRECATED"
        ].proto.discriminantValue.to_bytes(2, "little")
        return bytes(data)

    options = CompareOptions(services=["featuresDEPRECATED"])
    assert compare_events([undeclared(1)], [undeclared(1)], options).passed
    finding = the_only(compare_events([undeclared(1)], [undeclared(2)], options))
    assert (finding.kind, finding.service, finding.field) == ("value", "featuresDEPRECATED", "")
    assert finding.first_frame == 0  # a position
    events = []
    for member in ("pidState", "torqueState"):
        event = new_event("controlsState", mono_time_ns=1, valid=True)
        event.controlsState.lateralControlState.init(member)
        events.append(event.to_bytes())
    options = CompareOptions(services=["controlsState"])
    comparison = compare_events(events[:1], events[1:], options)
    assert {finding.kind for finding in comparison.findings} == {"type"}
    assert all(f.field.startswith("lateralControlState.") for f in comparison.findings)
    both = {("there", "another member"), ("another member", "there")}
    assert {(f.left, f.right) for f in comparison.findings} == both


@pytest.mark.parametrize("service", ["modelV2", "drivingModelData", "driverStateV2"])
def test_clearing_bytes_is_setting_fields_to_zero(service: str) -> None:
    """Beside the library, which places fields by itself."""
    events = []
    for time_ns, seconds in ((12345, 0.25), (0, 0.0)):
        event = new_event(service, mono_time_ns=time_ns, valid=True)
        body = getattr(event, service)
        body.frameId = 77
        body.modelExecutionTime = seconds
        events.append(event.to_bytes())
    spans = spans_of(service, ["modelExecutionTime", "gpuExecutionTime", "noSuchField"])
    assert cleared(events[0], spans) == events[1] != events[0]


def test_damaged_bytes_are_left_as_they_are() -> None:
    spans = spans_of("modelV2", ["modelExecutionTime"])
    data = drive(FRAMES)[0]
    rng = np.random.default_rng(3)
    for _ in range(3000):
        damaged = bytearray(data)
        for at in rng.integers(0, 64, 4):
            damaged[at] = rng.integers(256)
        assert len(cleared(bytes(damaged), spans)) == len(data)


# Logs with damage that are compared; thousands were tried with a larger number here.
MUTATED_LOGS = 60


def test_damage_anywhere_is_no_crash() -> None:
    whole = drive(range(100, 106), services=("modelV2", "cameraOdometry", "driverStateV2"))
    outcomes = set()
    for seed in range(MUTATED_LOGS):
        rng = np.random.default_rng(seed)
        right = list(whole)
        for index in np.flatnonzero(rng.random(len(whole)) < 0.4):
            data = bytearray(whole[index])
            for _ in range(int(rng.choice([1, 4, 30]))):
                # Pointers stand in front: most of the damage belongs there.
                data[int(rng.integers(8, rng.choice([64, len(data)])))] = int(rng.integers(256))
            right[index] = bytes(data)
        comparison = compare_events(whole, right)
        outcomes |= {finding.kind for finding in comparison.findings}
    assert {"missing", "type", "value"} <= outcomes
