"""Pickle protocol 5 restricted to plain data: an encoder, and a decoder that executes nothing.

`pickle.load` can read the encoder's output. The decoder is our own instead of `pickle.Unpickler`:
it supports only the opcodes that build None, bool, int, float, str, bytes, list, tuple and dict, so
no opcode can import, call, or allocate an amount taken from the file.
"""

import mmap
import struct
from collections.abc import Callable
from typing import Any, Final

MAX_DEPTH: Final = 32  # nesting depth of containers; a manifest needs 6
MAX_OPCODES: Final = 4_000_000  # limits time (about 1 s per 3 million) and objects (64 B each)
MAX_INT_BYTES: Final = 8  # every number in a manifest fits in a signed 64-bit integer
_CONTAINERS: Final = (list, tuple, dict)


class PlainPickleError(ValueError):
    """The bytes are not a plain-data pickle, or the object is not plain data."""


# --- Encoding ---------------------------------------------------------------------------------


def encode(value: object) -> bytes:
    """Return `value` as a protocol 5 pickle. Equal values give equal bytes.

    `pickle.dumps` memoizes by object identity, so two equal manifests give different bytes if only
    one shares a string object. This encoder memoizes nothing, so that compiling twice gives the
    same file.

    The value is None, bool, int (64 bit), float, str, bytes, or a list, tuple or dict (with str
    keys) of these, nested at most MAX_DEPTH deep. PlainPickleError names the place of any other
    type (numpy scalars included) and of values out of range.
    """
    # The opcodes PROTO 5 at the start and STOP at the end.
    out = bytearray(b"\x80\x05")
    _encode_into(out, value, "manifest", 0)
    out += b"."
    return bytes(out)


def _encode_into(out: bytearray, value: object, where: str, depth: int) -> None:
    if depth > MAX_DEPTH and isinstance(value, _CONTAINERS):
        raise PlainPickleError(f"{where}: nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if kind is dict:
        assert isinstance(value, dict)
        # A mark and one opcode for all items need fewer opcodes than adding items one by one.
        out += b"}("
        for key, item in value.items():
            if type(key) is not str:
                raise PlainPickleError(f"{where}: key {key!r} is not a str")
            _encode_str(out, key)
            _encode_into(out, item, f"{where}.{key}", depth + 1)
        out += b"u"
    elif kind is list or kind is tuple:
        assert isinstance(value, list | tuple)
        out += b"](" if kind is list else b"("
        for index, item in enumerate(value):
            _encode_into(out, item, f"{where}[{index}]", depth + 1)
        out += b"e" if kind is list else b"t"
    else:
        _encode_scalar(out, value, where)


def _encode_scalar(out: bytearray, value: object, where: str) -> None:
    kind = type(value)
    if value is None:
        out += b"N"
    elif kind is bool:
        out += b"\x88" if value else b"\x89"
    elif kind is int:
        assert isinstance(value, int)
        # BININT holds 32 bits; LONG1 holds larger numbers as bytes with a length.
        if -(2**31) <= value < 2**31:
            out += b"J" + struct.pack("<i", value)
        elif -(2**63) <= value < 2**63:
            out += b"\x8a\x08" + struct.pack("<q", value)
        else:
            raise PlainPickleError(f"{where}: {value} does not fit 64 bits")
    elif kind is float:
        out += b"G" + struct.pack(">d", value)
    elif kind is str:
        assert isinstance(value, str)
        _encode_str(out, value)
    elif kind is bytes:
        assert isinstance(value, bytes)
        _encode_sized(out, b"C", b"B", value)
    else:
        raise PlainPickleError(
            f"{where}: {kind.__module__}.{kind.__qualname__} is not plain data; "
            "convert it to a builtin type"
        )


def _encode_str(out: bytearray, value: str) -> None:
    try:
        payload = value.encode()
    except UnicodeEncodeError:
        raise PlainPickleError(f"the string {value[:80]!r} is not valid Unicode") from None
    _encode_sized(out, b"\x8c", b"X", payload)


def _encode_sized(out: bytearray, short: bytes, long: bytes, payload: bytes) -> None:
    if len(payload) < 256:
        out += short + bytes([len(payload)]) + payload
    elif len(payload) < 2**32:
        out += long + struct.pack("<I", len(payload)) + payload
    else:
        raise PlainPickleError(f"a {len(payload)} byte string does not fit a header")


# --- Decoding ---------------------------------------------------------------------------------


def decode(data: bytes | mmap.mmap, limit: int | None = None) -> tuple[Any, int]:
    """Decode one plain-data pickle at the start of `data`, reading at most `limit` bytes.

    Returns the value and the number of bytes up to and including the STOP opcode. It also reads the
    output of `pickle.dumps(value, protocol=5)` for plain data, except that no container may occur
    twice (a reference to a list or dict is refused, so there are no cycles).

    Raises:
        PlainPickleError: an opcode outside the whitelist, a truncated or oversized argument, an
            inconsistent stack, a key that is not a str, or nesting beyond MAX_DEPTH.
    """
    decoder = _Decoder(data, len(data) if limit is None else min(limit, len(data)))
    value = decoder.run()
    _check_depth(value)
    return value, decoder.position


class _Decoder:
    """The stack machine. Each opcode has a method; `OPCODES` is the whitelist."""

    def __init__(self, data: bytes | mmap.mmap, size: int) -> None:
        self.data = data
        self.size = size
        self.position = 0
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []  # stacks set aside by MARK, innermost last
        self.memo: list[Any] = []

    def run(self) -> Any:
        data, table = self.data, OPCODES
        # Only this protocol is accepted, because others have opcodes outside the whitelist.
        if data[:2] != b"\x80\x05":
            raise PlainPickleError("it does not start with pickle protocol 5")
        self.position = 2
        try:
            # Limiting the number of opcodes limits the time that a hostile file takes.
            for _ in range(MAX_OPCODES):
                if self.position >= self.size:
                    break
                code = data[self.position]
                self.position += 1
                if code == 0x2E:  # STOP
                    return self._result()
                handler = table.get(code)
                if handler is None:
                    raise PlainPickleError(
                        f"opcode 0x{code:02x} at byte {self.position - 1} is not plain data"
                    )
                handler(self)
        # An empty stack is a defect of the file, so report it as one instead of an IndexError.
        except (IndexError, struct.error):
            raise PlainPickleError(f"it ends or unwinds early at byte {self.position}") from None
        except UnicodeDecodeError:
            raise PlainPickleError(f"a string before byte {self.position} is not UTF-8") from None
        if self.position >= self.size:
            raise PlainPickleError(f"it has no end within {self.size} bytes")
        raise PlainPickleError(f"it has more than {MAX_OPCODES} opcodes")

    def _result(self) -> Any:
        if self.marked or len(self.stack) != 1:
            raise PlainPickleError(f"its stack does not end in one value at byte {self.position}")
        return self.stack[0]

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, checking that they exist before allocating anything."""
        end = self.position + count
        if end > self.size:
            raise PlainPickleError(
                f"an argument of {count} bytes at byte {self.position} passes the end"
            )
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def take_sized(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "little"))

    def pop_mark(self) -> list[Any]:
        """Return the values above the innermost mark, and remove the mark."""
        items = self.stack
        self.stack = self.marked.pop()
        return items

    def target(self, kind: type) -> Any:
        top = self.stack[-1]
        if type(top) is not kind:
            raise PlainPickleError(
                f"byte {self.position - 1} adds to a {type(top).__name__}, not a {kind.__name__}"
            )
        return top

    def frame(self) -> None:
        # A frame is only a hint for reading ahead, but its length must still fit the data.
        length = int.from_bytes(self.take(8), "little")
        if length > self.size - self.position:
            raise PlainPickleError(f"a frame of {length} bytes passes the end")

    def mark(self) -> None:
        # A dictionary in a list has two marks, so the limit is twice the depth.
        if len(self.marked) >= 2 * MAX_DEPTH:
            raise PlainPickleError(f"it is nested more than {MAX_DEPTH} deep")
        self.marked.append(self.stack)
        self.stack = []

    def long1(self) -> None:
        width = self.take(1)[0]
        # Converting long integers takes quadratic time, so their width is limited.
        if width > MAX_INT_BYTES:
            raise PlainPickleError(f"an integer of {width} bytes at byte {self.position}")
        self.stack.append(int.from_bytes(self.take(width), "little", signed=True))

    def append(self) -> None:
        item = self.stack.pop()
        self.target(list).append(item)

    def appends(self) -> None:
        items = self.pop_mark()
        self.target(list).extend(items)

    def set_pairs(self, pairs: list[Any]) -> None:
        target = self.target(dict)
        if len(pairs) % 2:
            raise PlainPickleError(f"a key without a value before byte {self.position}")
        for key, item in zip(pairs[::2], pairs[1::2], strict=True):
            if type(key) is not str:
                raise PlainPickleError(f"a key of type {type(key).__name__}, expected str")
            # Python would keep the last one; another reader might keep the first.
            if key in target:
                raise PlainPickleError(f"the key {key[:80]!r} occurs twice")
            target[key] = item

    def setitem(self) -> None:
        item = self.stack.pop()
        key = self.stack.pop()
        self.set_pairs([key, item])

    def make_tuple(self, count: int) -> None:
        items = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def memoize(self) -> None:
        self.memo.append(self.stack[-1])

    def get(self, width: int) -> None:
        index = int.from_bytes(self.take(width), "little")
        if index >= len(self.memo):
            raise PlainPickleError(f"memo index {index} of {len(self.memo)}")
        value = self.memo[index]
        # A container that occurs twice could contain itself.
        if isinstance(value, _CONTAINERS):
            raise PlainPickleError(f"memo index {index} refers to a container")
        self.stack.append(value)

    def push(self, value: Any) -> None:
        self.stack.append(value)


def _text(decoder: _Decoder, width: int) -> None:
    decoder.push(decoder.take_sized(width).decode())


OPCODES: Final[dict[int, Callable[[_Decoder], None]]] = {
    0x95: _Decoder.frame,
    ord("("): _Decoder.mark,
    ord("N"): lambda d: d.push(None),
    0x88: lambda d: d.push(True),
    0x89: lambda d: d.push(False),
    ord("J"): lambda d: d.push(int.from_bytes(d.take(4), "little", signed=True)),
    ord("K"): lambda d: d.push(d.take(1)[0]),
    ord("M"): lambda d: d.push(int.from_bytes(d.take(2), "little")),
    0x8A: _Decoder.long1,
    ord("G"): lambda d: d.push(struct.unpack(">d", d.take(8))[0]),
    0x8C: lambda d: _text(d, 1),
    ord("X"): lambda d: _text(d, 4),
    ord("C"): lambda d: d.push(d.take_sized(1)),
    ord("B"): lambda d: d.push(d.take_sized(4)),
    ord("]"): lambda d: d.push([]),
    ord("}"): lambda d: d.push({}),
    ord(")"): lambda d: d.push(()),
    ord("a"): _Decoder.append,
    ord("e"): _Decoder.appends,
    ord("s"): _Decoder.setitem,
    ord("u"): lambda d: d.set_pairs(d.pop_mark()),
    ord("t"): lambda d: d.push(tuple(d.pop_mark())),
    0x85: lambda d: d.make_tuple(1),
    0x86: lambda d: d.make_tuple(2),
    0x87: lambda d: d.make_tuple(3),
    0x94: _Decoder.memoize,
    ord("h"): lambda d: d.get(1),
    ord("j"): lambda d: d.get(4),
}


def _check_depth(value: object) -> None:
    """Raise PlainPickleError for nesting beyond MAX_DEPTH. Works by level, without recursion."""
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    # The root has depth 0, and the last iteration finds nothing left.
    for _ in range(MAX_DEPTH + 2):
        if not level:
            return
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) in _CONTAINERS
        ]
    raise PlainPickleError(f"it is nested more than {MAX_DEPTH} deep")
