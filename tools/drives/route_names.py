"""Names of openpilot's routes and segments, as people write them; pure text, no files.

::

    [root/][dongle | _ or /]log id[--N or /N or /a:b[:c]][/selector]
    https://connect.comma.ai/dongle/log id[/from s/to s][/selector]

A log id has 20 characters: ``2023-07-27--13-01-19`` until 2024, ``000001d4--2648a9a404`` since.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tools.errors import DriveError

DONGLE: Final = r"[0-9a-z]{16}"
LOG_ID: Final = r"[0-9]{4}(?:-[0-9]{2}){2}-(?:-[0-9]{2}){3}|[0-9a-f]{8}--[0-9a-z]{10}"
# A week of driving: no route is longer, and a list of that many numbers is small.
MAX_SEGMENTS: Final = 10_000
_TAIL: Final = re.compile(
    r"(?P<base>.*?)"
    r"(?:(?:--|/)(?P<selection>-?[0-9]+|-?[0-9]*:-?[0-9]*(?::-?[0-9]*)?))?"
    r"(?:/(?P<selector>[rqai]))?/*"
)
_ROUTE: Final = re.compile(
    rf"(?:(?P<root>.*?)/)??(?:(?P<dongle>{DONGLE})[|_/])?(?P<log_id>{LOG_ID})"
)
_SELECTOR: Final = re.compile(r"(?P<base>.+?)/+(?P<selector>[rqai])/*")
_ADDRESS: Final = re.compile(r"(?:https?://)?connect\.comma\.ai(?:/(?P<path>[^?#]*))?(?:[?#].*)?")
_ROUTE_OF_ADDRESS: Final = re.compile(
    rf"(?P<dongle>{DONGLE})/(?P<log_id>{LOG_ID})(?:/(?P<begin>\d+)/(?P<end>\d+))?(?P<rest>(?:/.+)?)"
)
_SEGMENT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Selection:
    """Which segments of a route, and which of its logs."""

    # ``5``, ``-1``, ``2:6`` or ``0:10:2``, as Python counts; None: all there are.
    text: str | None = None
    # ``r`` the full log, ``q`` the small one, ``a`` and ``i`` the full one where there is one.
    selector: str = "r"

    @property
    def suffix(self) -> str:
        """What follows the name of a route to name the selected log."""
        return "" if self.selector == "r" else f"/{self.selector}"

    def numbers(self, count: int) -> list[int]:
        """Return the segments that are meant, of a route that has numbers up to ``count - 1``.

        A stated end may lie beyond: then the numbers do, too, and are missed by name.

        Raises:
            DriveError: it selects nothing; the caller says of what.
        """
        if self.text is None:
            return list(range(count))
        parts = [int(part) if part else None for part in self.text.split(":")]
        if any(part is not None and abs(part) > MAX_SEGMENTS for part in parts):
            raise DriveError(f"expected segments up to {MAX_SEGMENTS}, found {self.text}")
        from_end = [part + count if part is not None and part < 0 else part for part in parts]
        start, stop = (*from_end[:2], None)[:2]
        if len(parts) == 1:
            numbers = [start or 0]
        else:
            step = parts[2] if len(parts) == 3 and parts[2] is not None else 1
            if step == 0:
                raise DriveError(f"expected a step other than 0, found {self.text}")
            first, end = (0, count) if step > 0 else (count - 1, -1)
            numbers = list(
                range(first if start is None else start, end if stop is None else stop, step)
            )
        if not numbers or min(numbers) < 0:
            raise DriveError(
                f"expected segments of 0 to {count - 1}, found {self.text}, which selects none; "
                "correct the range"
            )
        return numbers


@dataclass(frozen=True, slots=True)
class RouteName:
    """A route by name."""

    root: str | None  # directory written before the name; None: where routes lie is not said
    dongle: str | None  # 16 characters of the device; None where the name has none
    log_id: str  # 20 characters

    @property
    def text(self) -> str:
        """The canonical name, without the root."""
        return f"{self.dongle}|{self.log_id}" if self.dongle else self.log_id


def from_address(text: str) -> str:
    """Return the name of the route that a pasted address leads to; other texts as they are.

    Raises:
        DriveError: the address is not that of a route.
    """
    address = _ADDRESS.fullmatch(text)
    if address is None:
        return text
    match = _ROUTE_OF_ADDRESS.fullmatch((address["path"] or "").strip("/"))
    if match is None:
        raise DriveError(
            f"{text}: expected the address of a route, such as https://connect.comma.ai/"
            "a2a0ccea32023010/000001d4--2648a9a404, found another one; open the route and copy "
            "its address"
        )
    name = f"{match['dongle']}|{match['log_id']}"
    if match["begin"] is not None:
        first = int(match["begin"]) // _SEGMENT_S
        name += f"/{first}:{max(first + 1, -(-int(match['end']) // _SEGMENT_S))}"
    return name + match["rest"]


def readings(text: str) -> list[tuple[str, Selection]]:
    """Return what a text may mean: less and less of it is the name, and more of it a selection.

    A directory's own name may end as a selection does, in ``--0``.
    """
    found = [(text, Selection())]
    match = _SELECTOR.fullmatch(text)
    if match is not None:
        found.append((match["base"], Selection(selector=match["selector"])))
    return [*found, split_selection(text)]


def split_selection(text: str) -> tuple[str, Selection]:
    """Return what precedes the segments and the selector at the end of a text, and those.

    ``X/2:5/q`` is ``X`` and ``2:5`` of the small logs; slashes at the end mean nothing.
    """
    # A log id ends in "--" and ten characters that may all be digits: it is no segment.
    whole = _ROUTE.fullmatch(text.rstrip("/"))
    if whole is not None:
        return text.rstrip("/"), Selection()
    match = _TAIL.fullmatch(text)
    if match is None:
        return text, Selection()
    selection, base = match["selection"], match["base"]
    if selection is not None and _ROUTE.fullmatch(f"{base}--{selection}"):
        base, selection = f"{base}--{selection}", None
    return base, Selection(selection, match["selector"] or "r")


def parse_route(text: str) -> RouteName | None:
    """Return the route that a text without segments names; None if it names none."""
    match = _ROUTE.fullmatch(text)
    if match is None:
        return None
    root = match["root"]
    return RouteName("/" if root == "" else root, match["dongle"], match["log_id"])
