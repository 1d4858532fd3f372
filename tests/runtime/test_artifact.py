"""The file: written atomically, read with every check, one line for whatever is wrong."""

import hashlib
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.artifact import from_memory, is_artifact, read_artifact, write_artifact
from runtime.errors import ArtifactError
from runtime.plainpickle import encode
from tests.runtime import tiny

Change = Callable[[dict[str, Any]], object]


def test_artifact_begins_with_an_ordinary_pickle_of_builtins(artifact: Path) -> None:
    with artifact.open("rb") as file:
        manifest = pickle.load(file)
    assert manifest["magic"] == "modeld-artifact"
    assert manifest["buffers"] == tiny.manifest()["buffers"]
    assert manifest["data_size"] == len(tiny.data_blob())


def test_data_follows_at_the_next_page_and_ends_the_file(artifact: Path) -> None:
    content = artifact.read_bytes()
    assert content[4096:] == tiny.data_blob()
    loaded = read_artifact(artifact)
    assert loaded.data == tiny.data_blob()
    assert loaded.data.readonly


def test_digests_cover_the_manifest_and_the_data(artifact: Path) -> None:
    with artifact.open("rb") as file:
        manifest = pickle.load(file)
    digests = dict(manifest["sha256"])
    assert digests["data"] == hashlib.sha256(tiny.data_blob()).hexdigest()
    assert digests["manifest"] == read_artifact(artifact).sha256
    manifest["sha256"]["manifest"] = "0" * 64
    assert hashlib.sha256(encode(manifest)).hexdigest() == digests["manifest"]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tiny.write(tmp_path / "a.pkl"), tiny.write(tmp_path / "b.pkl")
    assert first.read_bytes() == second.read_bytes()
    assert tiny.write(tmp_path / "c.pkl", name="other").read_bytes() != first.read_bytes()


def test_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = tiny.write(tmp_path / "a.pkl")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_failed_write_leaves_neither_file_nor_temporary(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"arena_size: expected int, found str"):
        tiny.write(tmp_path / "a.pkl", arena_size="512")
    with pytest.raises(ArtifactError, match=r"manifest\.metadata\.x: numpy\.float32 is not plain"):
        tiny.write(tmp_path / "a.pkl", metadata={"x": np.float32(1)})
    assert list(tmp_path.iterdir()) == []


def test_write_into_a_missing_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"a\.pkl: cannot write: No such file or directory"):
        tiny.write(tmp_path / "missing" / "a.pkl")


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
def test_future_artifact_is_called_that_even_if_its_keys_are_unknown(
    tmp_path: Path, key: str
) -> None:
    path = tmp_path / "a.pkl"
    future = {"magic": "modeld-artifact", "format": 1, "abi": 1, "new": [], key: 7}
    path.write_bytes(pickle.dumps(future, protocol=5))
    with pytest.raises(ArtifactError, match=r"has (format|runtime ABI) 7, this version reads 1"):
        read_artifact(path)


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


def test_extra_bytes_are_refused(artifact: Path) -> None:
    artifact.write_bytes(artifact.read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match="followed by other data: 4401 bytes, expected 4400"):
        read_artifact(artifact)


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


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 4399), st.integers(1, 255)), min_size=1, max_size=4))
def test_any_changed_byte_is_an_artifact_error(
    artifact: Path, tmp_path: Path, edits: list[tuple[int, int]]
) -> None:
    content = artifact.read_bytes()
    changed = bytearray(content)
    for position, flip in edits:
        changed[position] ^= flip
    damaged = tmp_path / "damaged.pkl"
    damaged.write_bytes(changed)
    if changed == content:  # two edits of one byte may undo each other
        read_artifact(damaged)
        return
    with pytest.raises(ArtifactError) as error:
        read_artifact(damaged)
    assert "\n" not in str(error.value)


# --- a well signed manifest whose content is wrong -----------------------------------------------

WRONG: dict[str, tuple[Change, str]] = {
    "no buffers": (lambda m: m.pop("buffers"), "the field 'buffers' is missing"),
    "buffer not a dict": (
        lambda m: m["buffers"].__setitem__(0, 1),
        r"buffers\[0\]: expected a dict, found int",
    ),
    "bool is no int": (lambda m: m.update(arena_size=True), "expected int, found bool"),
    "unknown kind": (lambda m: m.update(kind="robot"), "unknown value 'robot'"),
    "unknown dtype": (
        lambda m: m["buffers"][0].update(dtype="bfloat16"),
        r"buffers\[0\]\.dtype: unknown value 'bfloat16'",
    ),
    "object dtype": (lambda m: m["buffers"][0].update(dtype="O"), "unknown value 'O'"),
    "negative shape": (lambda m: m["buffers"][0].update(shape=[-4]), r"-4 is outside"),
    "huge shape": (lambda m: m["buffers"][0].update(shape=[2**34] * 16), "needs .* bytes"),
    "shape over size": (lambda m: m["buffers"][0].update(shape=[5]), "needs 20 bytes, size is 16"),
    "huge size": (lambda m: m["buffers"][0].update(size=2**62), "is outside"),
    "weight past the data": (
        lambda m: m["buffers"][4].update(offset=512),
        r"bytes 512\.\.528 lie outside the data of 304 bytes",
    ),
    "weight unaligned": (lambda m: m["buffers"][4].update(offset=8), "not a multiple of 256"),
    "weights overlap": (
        lambda m: (
            m["buffers"][4].update(size=272),
            m["buffers"][5].update(reset=256, size=48),
        ),
        "'weight' and 'queue' overlap in the data",
    ),
    "reset past the data": (
        lambda m: m["buffers"][5].update(reset=512),
        "lie outside the data",
    ),
    "arena past the end": (lambda m: m.update(arena_size=260), "lie outside the arena"),
    "arena overlap in a launch": (
        lambda m: (m["buffers"][6].update(size=272), m["buffers"][7].update(offset=256)),
        r"kernels\[2\] \(double_it\): its arguments 'total' and 'twice' overlap",
    ),
    "input with an offset": (lambda m: m["buffers"][0].update(offset=256), "expected 0"),
    "argument index": (lambda m: m["kernels"][0].update(args=[8, 0]), r"8 is outside 0\.\.7"),
    "negative index": (lambda m: m["kernels"][0].update(args=[-1, 0]), "-1 is outside"),
    "program index": (lambda m: m["kernels"][0].update(program=2), r"2 is outside 0\.\.1"),
    "launch index": (
        lambda m: m["entries"]["run"].update(launches=[5]),
        r"launches: 5 is outside 0\.\.4",
    ),
    "entry input kind": (
        lambda m: m["entries"]["run"].update(inputs=[2]),
        "buffer 2 is of kind output",
    ),
    "entry input twice": (
        lambda m: m["entries"]["run"].update(inputs=[0, 0]),
        "a name occurs twice",
    ),
    "no entry": (lambda m: m.update(entries={}), "expected at least one entry"),
    "kernel name": (lambda m: m["kernels"][0].update(name="a b"), "is not a kernel name"),
    "two dimensions": (lambda m: m["kernels"][0].update({"global": [1, 1]}), "2 dimensions"),
    "no work items": (lambda m: m["kernels"][0].update({"global": [0, 1, 1]}), "0 is outside"),
    "odd groups": (
        lambda m: m["kernels"][1].update(local=[3, 1, 1]),
        "is not a multiple of local",
    ),
    "empty source": (lambda m: m["programs"][0].update(source=" "), "empty or with a NUL"),
    "options of two lines": (lambda m: m["programs"][0].update(options="a\nb"), "printable"),
    "state twice": (
        lambda m: m["buffers"].append(tiny.buffer("queue", "state", "float32", 1)),
        "two state buffers have the same name",
    ),
    "total": (
        lambda m: m["buffers"].extend(
            tiny.buffer(f"i{n}", "input", "uint8", 2**33) for n in range(3)
        ),
        "bytes of device memory",
    ),
    "partial is a bool": (
        lambda m: m["buffers"][1].update(partial=1),
        r"buffers\[1\]\.partial: expected bool, found int",
    ),
    "partial output": (
        lambda m: m["buffers"][3].update(partial=True),
        r"partial, expected an input of uint8 with one axis, found output of int32\[1\]",
    ),
    "partial floats": (
        lambda m: m["buffers"][0].update(partial=True),
        r"partial, expected .* found input of float32\[4\]",
    ),
    "partial rows": (
        lambda m: m["buffers"][1].update(shape=[10, 10], partial=True),
        r"partial, expected .* found input of uint8\[10, 10\]",
    ),
    "image of a state": (
        lambda m: m["buffers"][5].update(image=[3, 1]),
        "image: expected image or weight of float16 or float32, found state of float32",
    ),
    "image of another size": (
        lambda m: m["buffers"][4].update(image=[2, 1]),
        "2x1 texels of float32 take 32 bytes, size is 16",
    ),
    "image of one number": (
        lambda m: m["buffers"][4].update(image=[1]),
        "expected width and height",
    ),
    "image without a size": (
        lambda m: m["buffers"].append(tiny.buffer("t", "image", "float32", 4)),
        "kind image without its width and height",
    ),
    "model digest": (lambda m: m["models"][0].update(sha256="x"), "64 lower-case hex digits"),
}


@pytest.mark.parametrize("name", WRONG)
def test_manifest_with_a_wrong_field_is_refused(name: str) -> None:
    change, message = WRONG[name]
    raw = tiny.manifest()
    change(raw)
    with pytest.raises(ArtifactError, match=message) as error:
        from_memory(raw, tiny.data_blob())
    assert "\n" not in str(error.value)


CODE = {
    "kind": "map",
    "start": 0,
    "end": len(tiny.SOURCE),
    "writes": 2,
    "float64": False,
    "local_bytes": 0,
    "image_reads": 0,
    "gated_reads": 0,
    "image_writes": 0,
}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kind", None, "expected str, found NoneType"),
        ("start", len(tiny.SOURCE) + 1, "is outside"),
        ("end", -1, "is outside"),
        ("writes", 3, r"code\.writes: 3 is outside 0\.\.2"),
        ("float64", 1, "expected bool, found int"),
        ("local_bytes", -4, "is outside"),
        ("gated_reads", "1", "expected int, found str"),
    ],
)
def test_what_a_kernel_says_of_its_code_is_checked(key: str, value: Any, message: str) -> None:
    raw = tiny.manifest()
    raw["kernels"][0]["code"] = {**CODE}
    from_memory(raw, tiny.data_blob())
    raw["kernels"][0]["code"] = {**CODE, key: value}
    with pytest.raises(ArtifactError, match=message):
        from_memory(raw, tiny.data_blob())
    raw["kernels"][0]["code"] = {**CODE, "start": 5, "end": 4}
    with pytest.raises(ArtifactError, match="start 5 is behind end 4"):
        from_memory(raw, tiny.data_blob())


def test_reset_value_and_weight_may_be_the_same_bytes() -> None:
    raw = tiny.manifest()
    raw["buffers"][4]["offset"] = 256
    raw["buffers"][5]["reset"] = 256
    assert from_memory(raw, tiny.data_blob()).manifest.buffers[5].reset == 256


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


@settings(max_examples=500)
@given(path=paths, value=leaves | st.lists(leaves, max_size=3) | st.just({}))
def test_any_changed_field_is_an_artifact_error_or_accepted(path: list[int], value: Any) -> None:
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


def test_is_artifact_looks_at_the_first_bytes(artifact: Path) -> None:
    assert is_artifact(artifact.read_bytes()[:64])
    assert not is_artifact(b"PK\x03\x04")


def test_data_may_be_empty(tmp_path: Path) -> None:
    raw = tiny.manifest()
    raw["buffers"][4].update(kind="input")
    path = tmp_path / "a.pkl"
    write_artifact(path, raw, b"")
    assert path.stat().st_size == 4096
    assert read_artifact(path).data.nbytes == 0
