"""Runs the steps of several processes on one ring in every order there is.

The processes are the ring's own reader and writer, not a model of them. Each access to the memory
is a step. A process is a few calls, each of which gets what the one before returned. What a call
does next follows from what it has read so far, so it is run anew with what it has read, up to its
next access, once for each such history.

Where the next step of a process concerns no other process, only that step is taken: in whatever
order the others come, the result is the same.

Stores may lie in a buffer of the process for as long as no fence follows, each place by itself, as
on a machine that orders less than x86 does. Loads happen in order.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cereal.msgq.ring import HEADER_WORDS

# (kind, place, value): "load" and "store" of a word of the header, "size" and "set_size" of a word
# of the data, "read" and "write" of bytes, "fence"; "done" with what the process returned.
Op = tuple[str, Any, Any]
# Of a value that can be hashed, the next.
Process = Sequence[Callable[["Recorded", Any], Any]]


# Kinds of stores, and what loads the same.
STORES = {"store": "load", "set_size": "size", "write": "read"}


class Pause(BaseException):
    """The process has come to an access whose result is not known yet."""


class _Words:
    def __init__(self, access: Callable[[Op], Any], load: str, store: str) -> None:
        self._access, self._load, self._store = access, load, store

    def __getitem__(self, index: int, /) -> int:
        return int(self._access((self._load, index, None)))

    def __setitem__(self, index: int, value: int, /) -> None:
        self._access((self._store, index, value))


class Recorded:
    """A `Memory` that gives the results of before, and stops at the first access beyond."""

    def __init__(self, size: int, results: Sequence[Any]) -> None:
        self.size = size
        self.words = _Words(self._access, "load", "store")
        self.sizes = _Words(self._access, "size", "set_size")
        self.next: Op = ("done", None, None)
        self._results = iter(results)

    def read(self, offset: int, count: int) -> bytes:
        """Half by half: other processes come in between."""
        half = count // 2
        parts = [(offset, half), (offset + half, count - half)]
        return b"".join(self._access(("read", part, None)) for part in parts)

    def write(self, offset: int, data: bytes) -> None:
        """Half by half."""
        half = len(data) // 2
        for start, part in ((offset, data[:half]), (offset + half, data[half:])):
            self._access(("write", (start, len(part)), part))

    def fence(self) -> None:
        self._access(("fence", None, None))

    def _access(self, op: Op) -> Any:
        try:
            return next(self._results)
        except StopIteration:
            self.next = op
            raise Pause from None


@dataclass(frozen=True)
class State:
    """All that there is between two steps.

    Attributes:
        header: of the ring.
        data: of the ring.
        histories: what each process has read, as a number of `Explorer`.
        buffers: of each process, the stores that nobody else sees yet, oldest first.
    """

    header: bytes
    data: bytes
    histories: tuple[int, ...]
    buffers: tuple[tuple[Op, ...], ...]


@dataclass
class Explorer:
    """Goes through all states that a few processes can come to.

    Args:
        size: bytes of data of the ring.
        processes: what runs; the same steps whenever the same is read. The first call gets None.
        buffered: stores may be delayed.
    """

    size: int
    processes: Sequence[Process]
    buffered: bool = False
    states: int = 0
    # Of a history, the one before and what was read last; of one that begins a call, -1, and the
    # call's number with what it is given.
    _parents: list[tuple[int, Any]] = field(default_factory=list)
    _numbers: dict[tuple[int, Any], int] = field(default_factory=dict)
    _next: dict[tuple[int, int], Op] = field(default_factory=dict)
    # Which processes load and store a place; known better with each state.
    _users: dict[tuple[str, Any], tuple[set[int], set[int]]] = field(default_factory=dict)

    def outcomes(self, header: Sequence[int] = (), data: bytes = b"") -> set[tuple[Any, ...]]:
        """Return every tuple of what the processes can return."""
        words = [*header, *[0] * (HEADER_WORDS - len(header))]
        count = len(self.processes)
        start = State(
            struct.pack(f"<{HEADER_WORDS}Q", *words),
            data.ljust(self.size, b"\0"),
            (self._number(-1, (0, None)),) * count,
            ((),) * count,
        )
        while True:
            known = sum(len(a) + len(b) for a, b in self._users.values())
            found = self._explore(start)
            # A step that was taken for a process's own may have turned out not to be.
            if known == sum(len(a) + len(b) for a, b in self._users.values()):
                return found

    def _explore(self, start: State) -> set[tuple[Any, ...]]:
        seen, todo, found = {start}, [start], set[tuple[Any, ...]]()
        while todo:
            state = todo.pop()
            following, results = self._following(state)
            if results is not None:
                found.add(results)
            for one in following:
                if one not in seen:
                    seen.add(one)
                    todo.append(one)
        self.states = len(seen)
        return found

    def _following(self, state: State) -> tuple[list[State], tuple[Any, ...] | None]:
        following, results = [], []
        for index, history in enumerate(state.histories):
            if not self.buffered and self._is_own(index, self._op(index, history)):
                return [self._step(state, index)], None
        for index, history in enumerate(state.histories):
            buffer = state.buffers[index]
            # The oldest store of each place may become visible.
            places = set()
            for number, op in enumerate(buffer):
                if op[:2] not in places:
                    places.add(op[:2])
                    rest = (*buffer[:number], *buffer[number + 1 :])
                    following.append(self._store(state, index, op, history, rest))
            op = self._op(index, history)
            if op[0] == "done":
                results.append(op[2])
            elif op[0] != "fence" or not buffer:
                following.append(self._step(state, index))
        whole = len(results) == len(self.processes) and not any(state.buffers)
        return following, tuple(results) if whole else None

    def _step(self, state: State, index: int) -> State:
        history, buffer = state.histories[index], state.buffers[index]
        op = self._op(index, history)
        if op[0] == "return":
            return self._with(state, index, self._number(-1, op[1]), buffer)
        if op[0] in STORES:
            after = self._number(history, None)
            if self.buffered:
                return self._with(state, index, after, (*buffer, op))
            return self._store(state, index, op, after, buffer)
        value = None if op[0] == "fence" else self._load(state, buffer, op)
        return self._with(state, index, self._number(history, value), buffer)

    def _is_own(self, index: int, op: Op) -> bool:
        """Tell whether a step is of a place that, as far as is known, concerns no other process."""
        if op[0] in ("fence", "done", "return"):
            return op[0] != "done"
        others_read, others_write = False, False
        for place in _words_of(op):
            loads, stores = self._users.setdefault(place, (set(), set()))
            (stores if op[0] in STORES else loads).add(index)
            others_read |= bool(loads - {index})
            others_write |= bool(stores - {index})
        return not others_write and (op[0] not in STORES or not others_read)

    def _op(self, index: int, history: int) -> Op:
        op = self._next.get((index, history))
        if op is None:
            results, at = [], history
            while at >= 0:
                at, result = self._parents[at]
                results.append(result)
            call, given = results.pop()
            op = self._next_op(index, call, given, results[::-1])
            self._next[index, history] = op
        return op

    def _next_op(self, index: int, call: int, given: Any, results: list[Any]) -> Op:
        calls = self.processes[index]
        if call == len(calls):
            return ("done", None, given)
        memory = Recorded(self.size, results)
        try:
            value = calls[call](memory, given)
        except Pause:
            return memory.next
        return ("return", (call + 1, value), None)

    def _number(self, history: int, result: Any) -> int:
        key = (history, result)
        if key not in self._numbers:
            self._numbers[key] = len(self._parents)
            self._parents.append(key)
        return self._numbers[key]

    def _load(self, state: State, buffer: tuple[Op, ...], op: Op) -> Any:
        for kind, place, value in reversed(buffer):
            if STORES.get(kind) == op[0] and place == op[1]:
                return value
        if op[0] == "load":
            return struct.unpack_from("<Q", state.header, 8 * op[1])[0]
        if op[0] == "size":
            return struct.unpack_from("<q", state.data, 8 * op[1])[0]
        start, count = op[1]
        return state.data[start : start + count]

    @staticmethod
    def _with(state: State, index: int, history: int, buffer: tuple[Op, ...]) -> State:
        histories, buffers = [*state.histories], [*state.buffers]
        histories[index], buffers[index] = history, buffer
        return State(state.header, state.data, tuple(histories), tuple(buffers))

    @staticmethod
    def _store(state: State, index: int, op: Op, history: int, buffer: tuple[Op, ...]) -> State:
        header, data = bytearray(state.header), bytearray(state.data)
        kind, place, value = op
        if kind == "store":
            struct.pack_into("<Q", header, 8 * place, value)
        elif kind == "set_size":
            struct.pack_into("<q", data, 8 * place, value)
        else:
            data[place[0] : place[0] + len(value)] = value
        after = State(bytes(header), bytes(data), state.histories, state.buffers)
        return Explorer._with(after, index, history, buffer)


def _words_of(op: Op) -> list[tuple[str, int]]:
    """The words that a step is of, of header and data."""
    kind, place, _ = op
    if kind in ("load", "store"):
        return [("header", place)]
    if kind in ("size", "set_size"):
        return [("data", place)]
    start, count = place
    return [("data", word) for word in range(start // 8, (start + count + 7) // 8)]
