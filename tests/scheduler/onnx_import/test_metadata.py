"""output_slices: what exporters write is read, what could run code or mislead is refused."""

import base64
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from scheduler.errors import ModelError
from scheduler.onnx_import import import_model, parse_metadata
from scheduler.onnx_import.metadata import sliced_width
from tests.scheduler.onnx_import.onnx_models import parsed

SLICES = {
    "meta": slice(0, 55),
    "hidden": slice(55, -3),
    "tail": slice(-3, None),
    "all": slice(0, None),
}


# Each step makes a pair of what the step before it made, out of the pickle's memo.
STEPS = [(b"h" + bytes([i]), b"q" + bytes([i + 1])) for i in range(60)]
DOUBLED_TUPLES = b"".join(get * 2 + b"\x86" + put for get, put in STEPS)
DOUBLED_SLICES = b"".join(b"cbuiltins\nslice\n" + get * 2 + b"\x86R" + put for get, put in STEPS)
DOUBLED_DICTS = b"".join(b"}(Vx\n" + get + b"Vy\n" + get + b"u" + put for get, put in STEPS)


def props(value: Any, protocol: int = 4) -> dict[str, str]:
    return encoded(pickle.dumps(value, protocol=protocol))


def encoded(data: bytes) -> dict[str, str]:
    return {"output_slices": base64.b64encode(data).decode(), "model_checkpoint": "abc/123"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_slices_of_every_protocol_are_resolved_against_the_width(protocol: int) -> None:
    metadata = parse_metadata(props(SLICES, protocol), 64, "m.onnx")
    assert metadata.checkpoint == "abc/123"
    places = {"meta": (0, 55), "hidden": (55, 61), "tail": (61, 64), "all": (0, 64)}
    assert metadata.output_slices == places


def test_model_without_metadata_has_none() -> None:
    metadata = parse_metadata({}, None, "m.onnx")
    assert (metadata.checkpoint, metadata.output_slices) == ("", {})


ENDS = ((0, 65), (64, None), (5, 5), (6, 5), (-65, None), (0, 10, 2), (0, 10, -1))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(({"x": slice(*ends)}, r"\['x'\] = .* of width 64$") for ends in ENDS),
        *((value, "") for value in ([slice(0, 1)], {"x": (0, 1)}, {1: slice(0, 1)})),
        *((value, "") for value in (slice(0, 1), {"x": slice}, "x" * 500)),
    ],
    ids=lambda v: str(v)[:30],
)
def test_slices_that_do_not_fit_and_all_else_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=r"^m.onnx: output_slices" + message):
        parse_metadata(props(value), 64, "m.onnx")


class RunsCommand:
    """Pickles to a call of os.system that leaves a file behind."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def test_pickle_that_runs_a_command_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ModelError, match=r"refused global '(posix|nt)\.system'"):
            parse_metadata(props({"x": RunsCommand(target)}, protocol), 64, "m.onnx")
    assert not target.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cbuiltins\neval\n(S'1'\ntR.", "refused pickle opcode STRING"),
        (b"cbuiltins\neval\n(V1\ntR.", "refused global 'builtins.eval'"),
        (b"c__builtin__\neval\n(V1\ntR.", "refused global '__builtin__.eval'"),
        (pickle.dumps({"x": slice(0, 2.5)}), "refused pickle opcode BINFLOAT"),
        (pickle.dumps({"x": slice(False, True)}), "refused pickle opcode NEWFALSE"),
        (b"\x80\x04\x8c\x08builtins\x8c\x0fslice.__bases__\x93.", "refused global"),
        (b"(V1\ni__builtin__\neval\n.", "refused pickle opcode INST"),
        (b"\x80\x02cbuiltins\nslice\n)\x81}b.", "refused pickle opcode NEWOBJ"),
        (b"cbuiltins\nslice\n(I1\ntR}b.", "refused pickle opcode BUILD"),
        (b"Vpersistent\nQ.", "refused pickle opcode BINPERSID"),
        (b"\x82\x01.", "refused pickle opcode EXT1"),
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "memo index 2147483647 at 3 is out of bounds"),
        (b"p99999999\n.", "memo index 99999999"),
        (b"\x8a\xff.", "is damaged"),
        (b"\x80\x04}", "is damaged"),
        (b"", "is damaged"),
        (b"cbuiltins\nslice\n(tR.", "cannot be read"),
        (b"h\x07.", "cannot be read"),
        (pickle.dumps({"x": slice("a", 5)}), "slices of integers, found slice('a', 5, None)"),
        (b"cbuiltins\nslice\n}\x85R.", "slices of integers, found slice({})"),
        # What doubles with every step, and what is nested deeper than Python's stack.
        (b"Nq\0" + DOUBLED_TUPLES + b".", "refused a tuple that is not a slice at 10"),
        (b"}Nq\0" + DOUBLED_TUPLES + b"Ns.", "refused a tuple that is not a slice at 11"),
        (b"Nq\0" + DOUBLED_SLICES + b".", "slices of integers, found slice(slice(None, None, "),
        (b"}q\0" + DOUBLED_DICTS + b".", "must map names to slices"),
        (b"N" + b"\x85" * 60_000 + b".", "refused a tuple that is not a slice"),
        (b"Nq\0" + b"}Vx\nh\0sq\0" * 6_000 + b".", "must map names to slices"),
        (b"}Vx\ncbuiltins\nslice\nL" + b"9" * 4_000 + b"L\n\x85Rs.", "does not fit the output"),
        (b"}Vx\ncbuiltins\nslice\nL" + b"9" * 40_000 + b"L\n\x85Rs.", "is damaged"),
        (b"N" * (1 << 17), "expected at most 65536 bytes, found 131072"),
    ],
    ids=lambda v: None if isinstance(v, bytes) else str(v)[:40],
)
def test_hostile_pickle_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=r"^m.onnx: output_slices") as caught:
        parse_metadata(encoded(data), 64, "m.onnx")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_every_mutation_of_a_real_table_is_read_or_refused() -> None:
    good = pickletools.optimize(pickle.dumps(SLICES, protocol=4))
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(2000):
        data = bytearray(good)
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
        try:
            metadata = parse_metadata(encoded(bytes(data)), 64, "m.onnx")
        except ModelError:
            refused += 1
        else:
            assert all(0 <= a < b <= 64 for a, b in metadata.output_slices.values())
    assert 500 < refused < 2000


@pytest.mark.parametrize("text", ["not base64!", "é", "gAR9lC4"])
def test_text_that_is_not_base64(text: str) -> None:
    with pytest.raises(ModelError, match="is not base64 text"):
        parse_metadata({"output_slices": text}, 64, "m.onnx")


def test_slices_may_overlap_and_leave_gaps() -> None:
    slices = {"one": slice(0, 10), "two": slice(5, 20), "pad": slice(0, None)}
    found = parse_metadata(props(slices), 64, "m.onnx").output_slices
    assert found == {"one": (0, 10), "two": (5, 20), "pad": (0, 64)}


@pytest.mark.parametrize(
    ("shapes", "width"),
    [
        ({"y": (1, 64)}, 64),
        ({"y": (5,)}, 5),
        ({"y": ()}, None),
        ({"next_x": (1, 512), "outputs": (1, 64)}, 64),
        ({"a": (1, 64), "b": (1, 64)}, None),
        ({}, None),
    ],
    ids=str,
)
def test_slices_cut_the_only_output_or_the_one_called_outputs(
    shapes: dict[str, tuple[int, ...]], width: int | None
) -> None:
    assert sliced_width(shapes) == width


def test_slices_need_one_output() -> None:
    model = parsed("(float[1,64] x) => (float[1,64] a, float[1,64] b) { a = Neg(x) b = Exp(x) }")
    helper.set_model_props(model, props(SLICES))
    with pytest.raises(
        ModelError, match="net: output_slices needs a model with exactly one output"
    ):
        import_model(model)
