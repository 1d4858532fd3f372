"""Logs of forks that have another structure in the member that is `modeldHealth` here."""

import itertools
from pathlib import Path
from typing import Any

import capnp
import pytest

from cereal.errors import MessageError
from cereal.schema import content, member_name, new_event, read_event
from tests.cereal.shared import write_log
from tools.cli import main
from tools.messages.message_values import to_plain

# An Event is two words, the second beginning with the number of the member, and one pointer.
# `logMonoTime` @0 and `valid` @67 are no members, so ordinal 145 has number 143.
FORK = """
@0x{number:016x};
struct Event {{ logMonoTime @0 :UInt64; member @1 :UInt16; body @2 :Fork; }}
struct Fork {{ {fields} }}
"""
NUMBERS = itertools.count(0xE7C5_33F1_0A52_9000)


def fork_event(folder: Path, fields: str, **values: Any) -> bytes:
    """Return an Event with a structure of a fork in customReserved19."""
    path = folder / "fork.capnp"
    path.write_text(FORK.format(number=next(NUMBERS), fields=fields), encoding="utf-8")
    event = capnp.load(str(path)).Event.new_message(logMonoTime=5, member=143)
    body = event.init("body")
    for name, value in values.items():
        setattr(body, name, value)
    data: bytes = event.to_bytes()
    return data


def test_numbers_are_read_as_ours_and_the_rest_has_its_defaults(tmp_path: Path) -> None:
    event = read_event(fork_event(tmp_path, "a @0 :UInt32; b @1 :Float64;", a=7, b=2.5))
    assert member_name(event) == "modeldHealth"
    health = to_plain(content(event))
    assert (health["processId"], health["uptime"]) == (7, 2.5)
    assert (health["kind"], health["published"], health["faults"]) == ("", 0, [])


def test_a_list_of_bytes_becomes_structures_of_them(tmp_path: Path) -> None:
    """Cap'n Proto reads a list of numbers as one of structures that have grown from them."""
    event = read_event(fork_event(tmp_path, "a @0 :Text; b @1 :Text;", a="x", b="four"))
    health = to_plain(content(event))
    assert health["kind"] == "x"
    assert health["versions"] == [{"name": "", "version": ""}] * 5


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ("a @0 :List(Float32);", [1.0, 2.0]),  # where a text is
        ("a @0 :Data;", b"\xff\xfe\x00"),  # a text that is none
    ],
)
def test_what_does_not_fit_is_left_out_like_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: str, value: object
) -> None:
    data = fork_event(tmp_path, fields, a=value)
    with pytest.raises(MessageError):
        to_plain(content(read_event(data)))
    log = tmp_path / "fork.rlog"
    write_log(log, [data, bytes(new_event("carState", mono_time_ns=6).to_bytes())])
    assert main(["inspect", str(log)]) == 0
    assert "modeldHealth" in capsys.readouterr().out
    assert main(["inspect", str(log), "--dump", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert '"carState"' in lines[0]
    assert '"damaged": 1' in lines[-1]
