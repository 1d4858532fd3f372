"""What runs does not depend on the artifact's file: it is changed and cut in place."""

import dataclasses
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import ArtifactError
from runtime.files.user_file import CHUNK_BYTES, FileChangedError, PrivateCopy
from runtime.format.artifact import MAX_HEADER_BYTES, read_artifact, write_artifact
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import ProgramCache
from runtime.run.program import Program
from tests.runtime import tiny

# Loads an artifact, says so, waits to be told, runs it and prints the outputs.
CHILD = """
import sys
from runtime import load_program
from tests.runtime import tiny
with load_program(sys.argv[1]) as program:
    print("loaded", flush=True)
    for _ in sys.stdin:
        program.reset()
        print(program.run(tiny.inputs())["y"].tolist(), flush=True)
"""
# Larger than what the reader takes at once, so that it is more than one page and one chunk.
FILLER = 3 * CHUNK_BYTES // 4


def _large_data() -> bytes:
    return tiny.data_blob().ljust(512, b"\0") + bytes(range(256)) * (FILLER // 64)


def test_a_process_that_runs_survives_its_file_overwritten_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    write_artifact(path, tiny.manifest(), _large_data())
    command = [sys.executable, "-c", CHILD, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        into, out = child.stdin, child.stdout

        def answer() -> str:
            into.write("run\n")
            into.flush()
            return out.readline()

        assert out.readline() == "loaded\n"
        before = answer()
        with path.open("r+b") as file:  # as cp does it
            file.write(b"\xff" * path.stat().st_size)
        assert answer() == before
        os.truncate(path, 0)
        assert answer() == before
        path.unlink()
        assert answer() == before
        into.close()
        assert child.wait(60) == 0


def test_a_program_of_a_device_with_its_own_memory_gives_the_copy_back(tmp_path: Path) -> None:
    device = choose_device("cpu")
    apart = dataclasses.replace(device, info=dataclasses.replace(device.info, kind="gpu"))
    buffers = tiny.manifest()["buffers"]
    buffers[tiny.QUEUE]["reset"] = 256
    write_artifact(tmp_path / "a.pkl", tiny.manifest(buffers=buffers), tiny.data_blob())
    artifact = read_artifact(tmp_path / "a.pkl")
    memory = weakref.ref(artifact.data.obj)
    with Program(artifact, apart, ProgramCache(apart)) as program:
        first = program.run(tiny.inputs())["y"].copy()
        del artifact
        assert tiny.collected(memory)
        program.reset()
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], first)
        np.testing.assert_array_equal(program.state("queue")[0], tiny.QUEUE_RESET[4:8])


def test_nobody_can_write_to_the_data(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "a.pkl")
    assert read_artifact(path).data.readonly
    # Nor can C code, which does not ask: the pages are read-only.
    code = (
        "import numpy as np, ctypes, sys; from runtime import read_artifact;"
        "data = np.frombuffer(read_artifact(sys.argv[1]).data, np.uint8);"
        "ctypes.memset(data.ctypes.data, 1, 1)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -11


def test_a_long_manifest_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    metadata = {"text": "x" * (9 << 20)}
    write_artifact(path, tiny.manifest(metadata=metadata), _large_data())
    artifact = read_artifact(path)
    assert artifact.manifest.metadata == metadata
    assert bytes(artifact.data) == _large_data()


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(CHUNK_BYTES * 2))
    with PrivateCopy(path, MAX_HEADER_BYTES) as copy:
        copy.wait(copy.size)
        os.truncate(path, CHUNK_BYTES + 5)
        with pytest.raises(FileChangedError):
            copy._read(CHUNK_BYTES, 2 * CHUNK_BYTES)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "a.pkl")
    os.truncate(path, 1 << 40)  # takes no room on the disk
    with pytest.raises(ArtifactError, match="too large"):
        read_artifact(path)
    os.truncate(path, 8 << 30)
    with pytest.raises(ArtifactError, match="followed by other data"):
        read_artifact(path)
