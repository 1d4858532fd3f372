"""Who watches, at whose pace, and who may ask at all."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.tools.live.speaker import (
    unpacked,
)
from tools.errors import UsageError
from tools.live.bus_feed import LiveOptions, Seen
from tools.live.cameras import CameraTable
from tools.live.newest import COLUMNS, Row
from tools.live.server import Address, _may_ask, _name_of, _page_files, open_socket, url_of
from tools.live.viewers import LiveSource, Viewer

TABLE = CameraTable()
# --- who watches ------------------------------------------------------------------------------


def live_source() -> LiveSource:
    return LiveSource(LiveOptions("ipc:///bus", TABLE, 10.0, 960))


def seen(number: int) -> Seen:
    rows: list[Row] = [(float(number),) * len(COLUMNS)]
    return Seen(number, rows, {"road": ({"kind": "moment", "number": number}, b"")})


def test_each_viewer_gets_the_newest_and_all_rows() -> None:
    async def watch() -> None:
        source, fast, slow = live_source(), Viewer(), Viewer()
        source.open(fast)
        source.open(slow)
        for number in range(1, 6):
            source.deliver(seen(number))
            message, _ = unpacked(await source.next(fast, None))
            assert message["number"] == number
            fast.order(json.dumps({"got": number}))
            assert [row[0] for row in message["rows"]] == [number]
            if number == 1:
                await source.next(slow, None)
        message, _ = unpacked(await source.next(slow, None))
        assert (message["number"], message["skipped"]) == (5, 3)
        assert [row[0] for row in message["rows"]] == [2, 3, 4, 5]

    asyncio.run(watch())


def test_rows_are_bounded_and_those_who_pause_are_not_served() -> None:
    async def watch() -> None:
        source, viewer = live_source(), Viewer()
        source.open(viewer)
        viewer.order('{"paused": true}')
        assert source.wanted() == set()
        for number in range(1, 3000):
            source.deliver(seen(number))
        waiting = asyncio.ensure_future(source.next(viewer, None))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        viewer.order('{"paused": false, "camera": "road"}')
        message, _ = unpacked(await waiting)
        assert len(message["rows"]) == 1200

    asyncio.run(watch())


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '{"camera": "../driver"}', '{"rate": -1}', '{"row": "x"}', "1e9"]
)
def test_orders_that_mean_nothing_are_passed_over(text: str) -> None:
    viewer = Viewer()
    viewer.order(text)
    assert (viewer.camera, viewer.rate_hz, viewer.wanted) == ("road", 60.0, 0)


# --- who may ask ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local", "exposed"),
    [
        ("127.0.0.1:8417", True, True),
        ("localhost:9000", True, True),
        ("[::1]:8417", True, True),
        ("192.168.1.5:8417", False, True),
        ("rebound.example:8417", False, False),
        ("localhost.example", False, False),
        ("", False, False),
        ("[::1", False, False),
    ],
)
def test_only_names_of_this_machine_are_answered(host: str, local: bool, exposed: bool) -> None:
    assert _may_ask(_name_of(host), Address("127.0.0.1", 0)) is local
    assert _may_ask(_name_of(host), Address("0.0.0.0", 0, is_exposed=True)) is exposed  # noqa: S104 - compared with


def test_other_addresses_are_refused_unless_they_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(UsageError, match="add --expose if all of them may watch"):
        open_socket(Address("0.0.0.0", 0))  # noqa: S104 - refused
    with pytest.raises(UsageError, match="expected an address of this machine"):
        open_socket(Address("no host has this name", 0))
    with open_socket(Address("0.0.0.0", 0, is_exposed=True)):  # noqa: S104 - what is tested
        pass
    assert "no password" in caplog.text
    assert url_of("::1", 80) == "http://[::1]:80/"


def test_a_taken_port_is_said_with_what_to_do() -> None:
    with open_socket(Address("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(UsageError, match=f"look at http://127.0.0.1:{port}/, or choose"):
            open_socket(Address("127.0.0.1", port))


def test_the_page_is_whole_small_and_names_nothing_from_elsewhere() -> None:
    files = {name: body.decode() for name, (_, body) in _page_files().items()}
    named = re.findall(r'(?:href|src)="([^"]+)"', files["index.html"])
    named += re.findall(r"from '([^']+)'", "".join(files.values()))
    assert len(named) > 10
    missing = [name for name in named if name.rpartition("/")[2] not in files]
    assert missing == []
    assert all(text.count("\n") < 400 for text in files.values())
    # A namespace is a name, not an address that is fetched.
    text = "".join(files.values()).replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in text.replace("'https:'", "")
    assert "https:" not in text.replace("'https:'", "")


# A key of the page: its name, and what it does.
KEY = re.compile(r"^    '?(?:Shift\+)?([^'\s:]+|\s)'?: (?:inLog|\(\))", re.MULTILINE)


def test_every_key_that_the_page_knows_is_described() -> None:
    files = {name: body.decode() for name, (_, body) in _page_files().items()}
    known = set(KEY.findall(files["keys.js"]))
    described = set(re.findall(r"<kbd>([^<]+)</kbd>", files["index.html"]))
    spoken = {"&larr;": "ArrowLeft", "&rarr;": "ArrowRight", "&minus;": "-", "Space": " "}
    assert known == {spoken.get(one, one) for one in described - {"Shift"}}
    page = (Path(__file__).parents[3] / "docs/view.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (Space|Left, Right|Shift|Home, End|\+ and -|[gco?]) ", page, re.MULTILINE
    )
    assert len(rows) == 9
