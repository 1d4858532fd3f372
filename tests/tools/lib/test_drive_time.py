"""When in a drive an event lies, and where the drive lies in its route: one answer everywhere."""

import threading
from pathlib import Path

import pytest
from mcap.reader import make_reader

from cereal.log_reader import read_log
from cereal.segment_log import SegmentLogWriter, init_data_event
from tests.cereal.shared import write_log
from tests.tools.conftest import Modeld
from tests.tools.messages import event_of
from tools.live.log_index import LogIndex
from tools.messages.drive_log import DriveTime, summarize

SECOND_NS = 1_000_000_000
# A machine that had run for 7 s when the route began; the segment is the third of its route.
ROUTE_NS = 7 * SECOND_NS
FIRST_NS = ROUTE_NS + 120 * SECOND_NS
COUNT = 61
INIT = init_data_event(mono_time_ns=ROUTE_NS, wall_time_ns=1, version="1")


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Write segment 2 of a route: 60 s, a message each second."""
    with SegmentLogWriter(tmp_path, "a", INIT, first_segment=2) as writer:
        for index in range(COUNT):
            # Frames, so that our writer does not end the segment before its last second.
            writer.write(event_of("roadEncodeIdx", FIRST_NS + index * SECOND_NS))
            writer.write(event_of("modelV2", FIRST_NS + index * SECOND_NS, frameId=index))
    return tmp_path / "a--2" / "rlog.zst"


def test_a_later_segment_is_as_long_as_it_is(segment: Path, tmp_path: Path, modeld: Modeld) -> None:
    facts = modeld(0, "inspect", segment, "--json").json
    assert (facts["duration_s"], facts["route_from_s"]) == (60.0, 120.0)
    assert facts["clock_went_back"] == []
    assert max(service["span_s"] for service in facts["services"]) == 60.0
    said = modeld(0, "inspect", segment).out
    assert "125 messages over 60.000 s, from 120.000 s of its route on\n" in said
    # --from and --to count from the segment's beginning.
    dump = ("inspect", segment, "--dump", "--service", "modelV2", "--from", "2", "--to", "5")
    ids = [line["message"]["frameId"] for line in modeld(0, *dump).objects]
    assert ids == [2, 3, 4]
    begins = modeld(0, "inspect", segment, "--dump", "--to", "0.1").objects
    names = ["initData", "sentinel", "roadEncodeIdx", "modelV2"]
    assert [line["service"] for line in begins] == names
    # MCAP: no gap of two minutes; when a message was sent is kept.
    out = tmp_path / "out.mcap"
    modeld(0, "export", segment, "--mcap", out)
    with out.open("rb") as file:
        messages = [message for _, _, message in make_reader(file).iter_messages()]
    assert {one.log_time - one.publish_time for one in messages} == {0, FIRST_NS - ROUTE_NS}
    assert (messages[0].log_time, messages[0].publish_time) == (FIRST_NS, ROUTE_NS)
    assert max(one.log_time for one in messages) == FIRST_NS + 60 * SECOND_NS
    # The page of `view`, and reports.
    index = LogIndex([segment])
    index.fill(threading.Event())
    assert (index.row(0)[0], index.row(len(index) - 1)[0]) == (0.0, 60.0)
    assert "begins at 120.000 s of its route" in index.notes
    index.close()
    drive = summarize(one for one in read_log(segment) if one.which() != "modelV2")
    assert drive.time.text() == "60.000 s, from 120.000 s of its route on"
    compared = modeld(0, "compare", segment, segment, "--uncalibrated", "--json").json
    assert [time["route_from_s"] for time in compared["times"]] == [120.0, 120.0]


def test_a_log_of_two_boots_goes_on_and_says_so(tmp_path: Path, modeld: Modeld) -> None:
    """The second boot's clock is 54 s behind; neighbours in the wrong order are no boot."""
    first = [event_of("carState", (60 + at) * SECOND_NS) for at in (0, 1, 2, 4, 3)]
    second = [event_of("carState", (10 + at) * SECOND_NS) for at in range(3)]
    log = write_log(tmp_path / "log.zst", [*first, INIT, *second])
    facts = modeld(0, "inspect", log, "--json").json
    assert facts["duration_s"] == 6.0
    assert facts["clock_went_back"] == [{"at_s": 4.0, "by_s": 54.0}]
    assert [one["span_s"] for one in facts["services"]] == [6.0, 0.0]
    said = modeld(0, "inspect", log).out
    assert "over 6.000 s, from 53.000 s of its route on; the clock went back by 54.000 s at" in said
    dump = ("inspect", log, "--dump", "--service", "carState", "--from", "4")
    times = [line["logMonoTime"] // SECOND_NS for line in modeld(0, *dump).objects]
    assert times == [64, 10, 11, 12]


def test_edges_of_time() -> None:
    only = DriveTime()
    held = list(only.follow(iter(())))
    assert (held, only.span_ns, only.start_ns, only.route_from_s) == ([], 0, None, None)
    time = DriveTime()
    # Before the first by a little: below 0, and no boot; the route never begins behind the log.
    assert [time.take("carState", at) for at in (100, 90)] == [0, -10]
    assert time.take("initData", 200) == 100
    assert (time.boots, time.route_from_s, time.place_ns(-10)) == ([], 0.0, 90)


def test_a_log_of_nothing_but_its_beginning(tmp_path: Path, modeld: Modeld) -> None:
    log = write_log(tmp_path / "log.zst", [INIT])
    assert modeld(0, "inspect", log, "--json").json["duration_s"] == 0.0
    assert len(modeld(0, "inspect", log, "--dump").objects) == 1
