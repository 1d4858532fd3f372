"""The codec: reads and writes ordinary pickles of plain data, and refuses everything else."""

import os
import pickle
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.format.plainpickle import MAX_DEPTH, PlainPickleError, decode, encode

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=300)
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(plain)
def test_pickle_and_decode_read_what_encode_writes(value: Any) -> None:
    data = encode(value)
    assert pickle.loads(data) == value
    assert decode(data + b"rest") == (value, len(data))


@given(st.dictionaries(st.text(max_size=5), scalars | st.lists(scalars)))
def test_decode_reads_what_pickle_writes_for_plain_data(value: Any) -> None:
    data = pickle.dumps(value, protocol=5)
    assert decode(data) == (value, len(data))


def test_decode_keeps_types_apart() -> None:
    value = {"a": True, "b": 1, "c": 1.0, "d": [(), [], {}, None], "e": b"1", "f": "1"}
    decoded, _ = decode(encode(value))
    assert repr(decoded) == repr(value)


def test_encode_gives_equal_bytes_for_equal_values_of_other_identity() -> None:
    shared = "".join(["wei", "ght"])
    first = {"a": [shared, shared]}
    second = {"a": ["".join(["w", "eight"]), shared]}
    assert encode(first) == encode(second)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {"b": 2j}]}, r"manifest\.a\[1\]\.b: builtins\.complex is not plain data"),
        ({1: 2}, "key 1 is not a str"), (2**63, "does not fit 64 bits"),
        ("\ud800", "is not valid Unicode"), ({"x": bytearray()}, "bytearray is not plain data"),
    ],
)  # fmt: skip
def test_encode_refuses_what_is_not_plain(value: Any, message: str) -> None:
    with pytest.raises(PlainPickleError, match=message):
        encode(value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_bounded_on_both_sides() -> None:
    assert decode(encode(nested(MAX_DEPTH)))[0] == nested(MAX_DEPTH)
    with pytest.raises(PlainPickleError, match="nested more than 32 deep"):
        encode(nested(MAX_DEPTH + 1))
    with pytest.raises(PlainPickleError, match="nested more than 32 deep"):
        decode(pickle.dumps(nested(MAX_DEPTH + 1), protocol=5))


class _Reduce:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/modeld-was-here",)


class _Plain:
    pass


def p5(body: bytes) -> bytes:
    return b"\x80\x05" + body


HOSTILE = {
    "global": p5(b"cos\nsystem\n."), "inst": p5(b"(S'x'\nios\nsystem\n."),
    "stack_global": p5(b"\x8c\x02os\x8c\x06system\x93."),
    "reduce": pickle.dumps({"a": _Reduce()}, protocol=5),
    "build": pickle.dumps({"a": _Plain()}, protocol=5), "persistent id": p5(b"Pid\n."),
    "binary persistent id": p5(b"NQ."), "extension": p5(b"\x82\x01."), "next buffer": p5(b"\x97."),
    "set": pickle.dumps({"a": {1, 2}}, protocol=5),
    "bytearray": pickle.dumps({"a": bytearray(b"x")}, protocol=5),
    "huge LONG_BINPUT": p5(b"Nr\xff\xff\xff\xff."), "huge BINBYTES": p5(b"B\xff\xff\xff\xff."),
    "huge BINBYTES8": p5(b"\x8e" + struct.pack("<Q", 2**62) + b"."),
    "huge BINUNICODE": p5(b"X\xff\xff\xff\x7f."),
    "huge BYTEARRAY8": p5(b"\x96" + struct.pack("<Q", 2**62) + b"."),
    "huge FRAME": p5(b"\x95" + struct.pack("<Q", 2**63) + b"N."),
    "huge LONG1": p5(b"\x8a\xff" + b"\xff" * 255 + b"."),
    "huge LONG4": p5(b"\x8b\xff\xff\xff\x7f."), "memo index": p5(b"h\x05."),
    "long memo index": p5(b"j\xff\xff\xff\xff."), "cycle": p5(b"]\x94h\x00a."),
    "shared container": p5(b"](]\x94h\x00e."), "empty stack": p5(b"."), "two values": p5(b"NN."),
    "open mark": p5(b"N(."), "append to nothing": p5(b"Na."), "append to a dict": p5(b"}Na."),
    "unhashable key": p5(b"}]Ns."), "odd items": p5(b"}(Nu."),
    "repeated key": p5(b"}\x8c\x01aNs\x8c\x01aNs."), "no mark": p5(b"]e."),
    "bad UTF-8": p5(b"\x8c\x01\xff."), "protocol 2": b"\x80\x02N.", "protocol 0": b"(dp0\n.",
    "second PROTO": p5(b"\x80\x05N."), "empty": b"",
}  # fmt: skip


def deep(times: int) -> dict[str, bytes]:
    return {
        "deep nesting": p5(b"]" * times + b"a" * (times - 1) + b"."),
        "deep tuples": p5(b")" + b"\x85" * times + b"."),
        "deep marks": p5(b"(" * times + b"t" * times + b"."),
        "endless": p5(b"N" * 5 * times),
    }


@pytest.fixture(scope="module")
def million_s() -> float:
    """Seconds to decode a list of a million values."""
    started = time.perf_counter()
    decode(p5(b"](" + b"N" * 1_000_000 + b"e."))
    return time.perf_counter() - started


@pytest.mark.parametrize("name", [*HOSTILE, *deep(1)])
def test_decode_refuses_hostile_pickles(name: str) -> None:
    with pytest.raises(PlainPickleError):
        decode((HOSTILE | deep(20_000))[name])


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("name", deep(1))
def test_decode_refuses_endless_pickles_quickly(name: str, million_s: float) -> None:
    data = deep(1_000_000)[name]
    started = time.perf_counter()
    with pytest.raises(PlainPickleError):
        decode(data)
    # The worst goes on for all of the MAX_OPCODES: four million.
    assert time.perf_counter() - started < 20 * million_s


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_decode_of_random_bytes_gives_a_value_or_its_own_error(body: bytes) -> None:
    try:
        value, end = decode(p5(body))
    except PlainPickleError:
        return
    assert end <= len(body) + 2
    # What was accepted, an ordinary unpickler reads the same way.
    assert repr(pickle.loads(p5(body))) == repr(value)


def test_decode_honours_the_limit() -> None:
    data = encode(["x" * 200, "y" * 200])
    assert decode(data, len(data))[1] == len(data)
    with pytest.raises(PlainPickleError, match="passes the end"):
        decode(data, len(data) - 10)
