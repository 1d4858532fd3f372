"""The file: written atomically, read with every check, one line for whatever is wrong."""

import hashlib
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import ArtifactError
from runtime.format.artifact import from_memory, read_artifact, write_artifact
from runtime.format.parts import fitted_lineage
from runtime.format.plainpickle import encode
from tests.runtime import tiny


def test_artifact_is_a_plain_pickle_and_data_from_the_next_page_on(artifact: Path) -> None:
    with artifact.open("rb") as file:
        manifest = pickle.load(file)
    assert manifest["magic"] == "modeld-artifact"
    assert manifest["buffers"] == tiny.manifest()["buffers"]
    assert manifest["data_size"] == len(tiny.data_blob())
    assert artifact.read_bytes()[4096:] == tiny.data_blob()
    loaded = read_artifact(artifact)
    assert loaded.data == tiny.data_blob()
    assert loaded.data.readonly
    # The digests cover the manifest and the data.
    digests = dict(manifest["sha256"])
    assert digests["data"] == hashlib.sha256(tiny.data_blob()).hexdigest()
    assert digests["manifest"] == read_artifact(artifact).sha256
    manifest["sha256"]["manifest"] = "0" * 64
    assert hashlib.sha256(encode(manifest)).hexdigest() == digests["manifest"]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tiny.write(tmp_path / "a.pkl"), tiny.write(tmp_path / "b.pkl")
    assert first.read_bytes() == second.read_bytes()
    assert tiny.write(tmp_path / "c.pkl", name="other").read_bytes() != first.read_bytes()


def test_the_digest_of_the_program_is_of_what_it_computes(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    target = {**tiny.manifest()["target"], "device": "another", "driver": "9.9"}
    binaries = [{**one, "binary": b"made just now"} for one in tiny.manifest()["programs"]]
    same: list[dict[str, Any]] = [
        {},
        {"programs": binaries, "target": target},
        {"lineage": {"commit": "0123abc"}},
    ]
    found = [read_artifact(tiny.write(path, **changes)) for changes in same]
    assert len({one.program_sha256 for one in found}) == 1
    assert len({one.sha256 for one in found}) == 3
    # What it computes is of the manifest, and of the weights.
    others = [write_artifact(path, tiny.manifest(kind="driving"), tiny.data_blob())]
    others.append(write_artifact(path, tiny.manifest(), tiny.data_blob()[:-1] + b"\x01"))
    assert len({found[0].program_sha256, *(one.program for one in others)}) == 3
    assert read_artifact(path).program_sha256 == others[1].program


def test_an_artifact_without_the_digest_of_its_program_has_the_same(artifact: Path) -> None:
    found, content = read_artifact(artifact), artifact.read_bytes()
    manifest = pickle.loads(content)
    # As versions before wrote it, which in turn read what is written now.
    del manifest["sha256"]["program"]
    manifest["sha256"]["manifest"] = "0" * 64
    manifest["sha256"]["manifest"] = hashlib.sha256(encode(manifest)).hexdigest()
    artifact.write_bytes(encode(manifest).ljust(4096, b"\0") + content[4096:])
    older = read_artifact(artifact)
    assert older.program_sha256 == found.program_sha256
    assert older.sha256 != found.sha256


def test_lineage_of_others_is_made_to_fit() -> None:
    facts = {
        "b": "1",
        "a": "x" * 201,
        "c": "",
        "d=": "1",
        "n" * 97: "1",
        "e": "two\nlines",
        "f": "2",
    }
    assert fitted_lineage(facts, 3) == {
        "a": "(201 characters, sha256 84a0678c90937f5d)",
        "b": "1",
        "e": "(9 characters, sha256 edc8c1284585d703)",
    }
    assert parsed({"lineage": fitted_lineage({str(n): "v" for n in range(99)})}).lineage["0"] == "v"


def test_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = tiny.write(tmp_path / "a.pkl")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_failed_write_is_one_line_and_leaves_neither_file_nor_temporary(tmp_path: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"arena_size": "512"}, r"arena_size: expected int, found str"),
        ({"metadata": {"x": np.float32(1)}}, r"manifest\.metadata\.x: numpy\.float32 is not plain"),
    ]
    for change, message in changes:
        with pytest.raises(ArtifactError, match=message):
            tiny.write(tmp_path / "a.pkl", **change)
    with pytest.raises(ArtifactError, match=r"a\.pkl: cannot write: No such file or directory"):
        tiny.write(tmp_path / "missing" / "a.pkl")
    assert list(tmp_path.iterdir()) == []


def test_missing_empty_and_foreign_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    with pytest.raises(ArtifactError, match=r"a\.pkl: no such file; .*modeld compile"):
        read_artifact(path)
    path.touch()
    with pytest.raises(ArtifactError, match="the file is empty"):
        read_artifact(path)
    path.write_bytes(b"\x08\x07\x12\x04onnx" * 100)
    with pytest.raises(ArtifactError, match="not a modeld artifact"):
        read_artifact(path)
    path.write_bytes(pickle.dumps({"weights": [1, 2]}, protocol=5))
    with pytest.raises(ArtifactError, match=r"manifest\.magic: .*not a modeld artifact"):
        read_artifact(path)
    with pytest.raises(ArtifactError, match="cannot read: "):
        read_artifact(tmp_path)


@pytest.mark.parametrize("key", ["format", "abi"])
@pytest.mark.parametrize(("version", "age"), [(7, "newer"), (0, "older")])
def test_artifact_of_another_version_is_called_that(
    key: str, version: int, age: str, tmp_path: Path
) -> None:
    """Whatever else its keys are."""
    path = tmp_path / "a.pkl"
    other = {"magic": "modeld-artifact", "format": 1, "abi": 1, "new": [], key: version}
    path.write_bytes(pickle.dumps(other, protocol=5))
    said = f"has (format|runtime ABI) {version}, this version reads 1: it was written by a {age}"
    with pytest.raises(ArtifactError, match=said):
        read_artifact(path)
    with pytest.raises(ArtifactError, match=said):
        from_memory(other, b"")


def test_truncation_at_any_offset_is_refused(artifact: Path, tmp_path: Path) -> None:
    content = artifact.read_bytes()
    cut = tmp_path / "cut.pkl"
    for size in [*range(1, 300), *range(300, len(content), 37), len(content) - 1]:
        cut.write_bytes(content[:size])
        with pytest.raises(ArtifactError, match=r"cut\.pkl: ") as error:
            read_artifact(cut)
        assert "\n" not in str(error.value)
    cut.write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match="truncated: 4399 bytes, expected 4400"):
        read_artifact(cut)
    cut.write_bytes(content + b"\0")
    with pytest.raises(ArtifactError, match="followed by other data: 4401 bytes, expected 4400"):
        read_artifact(cut)


def test_changed_data_padding_and_manifest_are_told_apart(artifact: Path) -> None:
    content = artifact.read_bytes()
    header_size = content.rindex(b".", 0, 4096) + 1
    name = content.index(b"tiny.onnx")
    for position, message in (
        (len(content) - 1, "the data does not match its sha256"),
        (header_size, "the padding after the manifest is not zero"),
        (name, "the manifest does not match its sha256"),
    ):
        changed = bytearray(content)
        changed[position] ^= 1
        artifact.write_bytes(changed)
        with pytest.raises(ArtifactError, match=message):
            read_artifact(artifact)


@pytest.mark.parametrize("examples", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_any_changed_byte_is_an_artifact_error(
    artifact: Path, tmp_path: Path, examples: int
) -> None:
    content = artifact.read_bytes()
    damaged = tmp_path / "damaged.pkl"
    edit = st.tuples(st.integers(0, 4399), st.integers(1, 255))

    @settings(max_examples=examples)
    @given(edits=st.lists(edit, min_size=1, max_size=4))
    def check(edits: list[tuple[int, int]]) -> None:
        changed = bytearray(content)
        for position, flip in edits:
            changed[position] ^= flip
        damaged.write_bytes(changed)
        if changed == content:  # two edits of one byte may undo each other
            read_artifact(damaged)
            return
        with pytest.raises(ArtifactError) as error:
            read_artifact(damaged)
        assert "\n" not in str(error.value)

    check()


# --- a well signed manifest whose content is wrong -----------------------------------------------

WEIGHT, QUEUE, TOTAL, TWICE = "buffers/4", "buffers/5", "buffers/6", "buffers/7"
PARTIAL = r"partial, expected .* found"
OUTSIDE = "lie outside the"
MANY: list[Any] = [{}] * 200_001
# Values by their place -> what the error says.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"buffers": tiny.GONE}, "the field 'buffers' is missing"),
    ({"buffers/0": 1}, r"buffers\[0\]: expected a dict, found int"),
    ({"buffers": MANY}, "manifest.buffers: 200001 items, at most 200000 expected"),
    ({"arena_size": True}, "expected int, found bool"),
    ({"arena_size": (16 << 30) + 1}, r"arena_size: \d+ is outside 0\.\.17179869184"),
    ({"kind": "robot"}, "unknown value 'robot'"),
    ({"buffers/0/dtype": "bfloat16"}, r"buffers\[0\]\.dtype: unknown value 'bfloat16'"),
    ({"buffers/0/dtype": "O"}, "unknown value 'O'"),
    ({"buffers/0/shape": [-4]}, r"-4 is outside 0\.\."),
    ({f"{WEIGHT}/shape": [0, 4]}, r"0 is outside 1\.\."),
    ({"buffers/0/shape": [1] * 17}, "17 items, at most 16"),
    ({"buffers/0/shape": [2**34] * 16}, "needs .* bytes"),
    ({"buffers/0/shape": [5]}, "needs 20 bytes, size is 16"),
    ({"buffers/0/size": 0}, r"0 is outside 1\.\.17179869184"),
    ({"buffers/0/size": 2**62}, "is outside"),
    ({f"{WEIGHT}/offset": 512}, rf"bytes 512\.\.528 {OUTSIDE} data of 304 bytes"),
    ({f"{WEIGHT}/offset": 128}, "not a multiple of 256"),
    (
        {f"{WEIGHT}/size": 272, f"{QUEUE}/reset": 256, f"{QUEUE}/size": 48},
        "'weight' and 'queue' overlap in the data",
    ),
    ({f"{QUEUE}/reset": 512}, f"{OUTSIDE} data"),
    ({f"{QUEUE}/reset": -2}, r"reset: -2 is outside -1\.\."),
    ({"arena_size": 271}, f"{OUTSIDE} arena"),
    (
        {f"{TOTAL}/size": 257},
        r"kernels\[2\] \(double_it\): its arguments 'total' and 'twice' overlap",
    ),
    ({"buffers/0/offset": 256}, "offset 256, expected 0"),
    ({"kernels/0/args": [8, 0]}, r"8 is outside 0\.\.7"),
    ({"kernels/0/args": [-1, 0]}, "-1 is outside"),
    ({"kernels/0/args": [0] * 1025}, "1025 items, at most 1024"),
    ({"kernels/0/program": 2}, r"2 is outside 0\.\.1"),
    ({"kernels/0/origin": ["/a", 1]}, "origin: expected a list of str"),
    ({"kernels/0/flops": -1}, r"flops: -1 is outside 0\.\."),
    ({"kernels/0/bytes": -1}, r"bytes: -1 is outside 0\.\."),
    ({"kernels/0/name": "a b"}, "is not a kernel name"),
    ({"kernels/0/name": "a" * 257}, "is not a kernel name"),
    ({"kernels/0/name": "1a"}, "is not a kernel name"),
    ({"kernels/0/global": [1, 1]}, "2 dimensions"),
    ({"kernels/0/global": [0, 1, 1]}, r"0 is outside 1\.\.1099511627776"),
    ({"kernels/0/local": [1, 1, 65537]}, r"65537 is outside 1\.\.65536"),
    ({"kernels/1/local": [3, 1, 1]}, "is not a multiple of local"),
    ({"entries": {}}, "expected at least one entry"),
    ({"entries": {f"e{n}": {} for n in range(257)}}, "257 entries, at most 256"),
    ({"entries/run/launches": [5]}, r"launches: 5 is outside 0\.\.4"),
    ({"entries/run/inputs": [2]}, "buffer 2 is of kind output"),
    ({"entries/run/outputs": [0]}, "buffer 0 is of kind input"),
    ({"entries/run/inputs": [0, 0]}, "inputs: a name occurs twice"),
    ({"entries/run/inputs": [0] * 4097}, "4097 items, at most 4096"),
    ({"models": [{}] * 65}, "65 items, at most 64"),
    ({"models/0/sha256": "x"}, "64 lower-case hex digits"),
    ({"programs/0/source": " "}, "empty or with a NUL"),
    ({"programs/0/source": "a\0"}, "empty or with a NUL"),
    ({"programs/0/options": "a\nb"}, "printable"),
    ({"programs/0/binary": ""}, "expected bytes, found str"),
    (
        {"buffers/+": tiny.buffer("queue", "state", "float32", 1)},
        "two state buffers have the same name",
    ),
    # With the data and the arena one byte more than a device has.
    (
        {"buffers/+": tiny.buffer("i", "output", "uint8", (16 << 30) - 512 - 304 - 183)},
        "bytes of device memory",
    ),
    ({"buffers/1/partial": 1}, r"buffers\[1\]\.partial: expected bool, found int"),
    ({"buffers/3/partial": True}, rf"{PARTIAL} output of int32\[1\]"),
    ({"buffers/0/partial": True}, rf"{PARTIAL} input of float32\[4\]"),
    ({"buffers/1/shape": [10, 10], "buffers/1/partial": True}, rf"{PARTIAL} input of uint8\[10, 1"),
    (
        {f"{QUEUE}/image": [3, 1]},
        "image: expected image or weight of float16 or float32, found state of float32",
    ),
    ({f"{WEIGHT}/image": [2, 1]}, "2x1 texels of float32 take 32 bytes, size is 16"),
    ({f"{WEIGHT}/image": [1]}, "expected width and height"),
    ({"lineage": []}, "lineage: expected dict, found list"),
    ({"lineage": {"commit": 1}}, "lineage: expected str, found int"),
    ({"lineage": {"commit": "a\nb"}}, "lineage: expected at most 200 printable characters"),
    ({"lineage": {"c": "a" * 201}}, "lineage: expected at most 200 printable characters"),
    ({"lineage": {"a=b": "1"}}, "lineage: expected a name of 1 to 96 printable"),
    ({"lineage": {"": "1"}}, "lineage: expected a name of 1 to 96 printable"),
    ({"lineage": {str(n): "" for n in range(65)}}, "lineage: 65 entries, at most 64"),
    ({f"{WEIGHT}/image": [1, 65537]}, r"65537 is outside 1\.\.65536"),
    (
        {"buffers/+": tiny.buffer("t", "image", "float32", 4)},
        "kind image without its width and height",
    ),
]
# What is just as much as there may be.
RIGHT: list[dict[str, Any]] = [
    {"buffers/0/shape": [1] * 14 + [2, 2]},
    {"buffers/0/shape": [0]},
    {"arena_size": 272},
    {f"{WEIGHT}/offset": 256, f"{QUEUE}/reset": 256},  # reset value and weight: the same bytes
    {f"{TOTAL}/size": 256},
    {f"{TWICE}/offset": 0},  # in place
    {"buffers/+": tiny.buffer("i", "output", "uint8", (16 << 30) - 512 - 304 - 184)},
    {"kernels/0/args": [0] * 1024},
    {"kernels/0/name": "_" + "a" * 255},
    {"kernels/0/global": [2**40, 1, 1]},
    {"entries/run/inputs": [], "entries/run/launches": []},
    {"lineage": {"k" * 96: "v" * 200, **{str(n): "" for n in range(63)}}},
]


def parsed(changes: dict[str, Any]) -> Any:
    return from_memory(tiny.altered(tiny.manifest(), changes), tiny.data_blob()).manifest


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_manifest_with_a_wrong_field_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as error:
        parsed(changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes", RIGHT)
def test_manifest_at_its_bounds_is_taken(changes: dict[str, Any]) -> None:
    assert parsed(changes).raw["name"] == "tiny"


COUNTS = dict.fromkeys(("local_bytes", "image_reads", "gated_reads", "image_writes"), 0)
CODE = {
    "kind": "map", "start": 0, "end": len(tiny.SOURCE), "writes": 2, "float64": False, **COUNTS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": None}, "expected str, found NoneType"),
        ({"start": len(tiny.SOURCE) + 1}, "is outside"),
        ({"end": -1}, "is outside"),
        ({"start": 5, "end": 4}, "start 5 is behind end 4"),
        ({"writes": 3}, r"code\.writes: 3 is outside 0\.\.2"),
        ({"float64": 1}, "expected bool, found int"),
        *(({key: -4}, rf"code\.{key}: -4 is outside 0\.\.2147483647") for key in COUNTS),
        ({"gated_reads": "1"}, "expected int, found str"),
        ({}, ""),
        ({"start": 5, "end": 5}, ""),
    ],
)
def test_what_a_kernel_says_of_its_code_is_checked(changes: dict[str, Any], message: str) -> None:
    code = {"kernels/0/code": {**CODE, **changes}}
    if message:
        with pytest.raises(ArtifactError, match=message):
            parsed(code)
    else:
        parsed(code)


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3)
paths = st.lists(st.integers(0, 50), min_size=1, max_size=5)


def replace_at(node: Any, path: list[int], value: Any) -> None:
    """Put `value` somewhere into a nested manifest; the path chooses the child at each level."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[path[0] % len(keys)]
        path = path[1:]
        child = node[key]
        if not path or not isinstance(child, dict | list) or not child:
            node[key] = value
            return
        node = child


@pytest.mark.parametrize("examples", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_any_changed_field_is_an_artifact_error_or_accepted(examples: int) -> None:
    @settings(max_examples=examples)
    @given(path=paths, value=leaves | st.lists(leaves, max_size=3) | st.just({}))
    def check(path: list[int], value: Any) -> None:
        raw = tiny.megakernel_manifest()
        replace_at(raw, path, value)
        try:
            manifest = from_memory(raw, tiny.data_blob()).manifest
        except ArtifactError:
            return
        for kernel in manifest.kernels:
            assert all(0 <= index < len(manifest.buffers) for index in kernel.args)
            if kernel.function >= 0:
                assert manifest.megakernel is not None
                assert manifest.megakernel.functions[kernel.function].args == len(kernel.args)

    check()


def test_data_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    write_artifact(path, tiny.altered(tiny.manifest(), {f"{WEIGHT}/kind": "input"}), b"")
    assert path.stat().st_size == 4096
    assert read_artifact(path).data.nbytes == 0
