"""Proof that a condition is in force, and that a model compiles, verifies and runs under it.

`python -m tests.conditions.proofs NAME` prints one line, or ends with 1 and says what is wrong.
"""

import locale
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from runtime.files.cache import cache_dir
from runtime.opencl.device import choose_device, list_devices
from runtime.opencl.pocl import VNNI
from scheduler.device.targets import spec_of_device
from tests.conditions.forced import MEMORY_BYTES, ODD_NAME, SHM, SHM_BYTES
from tests.scheduler.onnx_import.onnx_models import parsed

ROOT = Path(__file__).parent.parent.parent


def expect(holds: bool, what: str) -> None:
    """End the process where a condition is not in force."""
    if not holds:
        sys.exit(f"not in force: {what}")


def cpu(*names: str, lanes: int | None = None) -> str:
    """Expect one of the names to be what PoCL compiles for, and a row of so many lanes."""
    device = choose_device()
    found = getattr(device.info, "cpu", "")
    row = spec_of_device(device)
    expect(found in names, f"PoCL compiles for {found!r}, expected {' or '.join(names)}")
    expect(lanes in (None, row.lanes), f"row {row.target} of {row.lanes} lanes, expected {lanes}")
    return f"{found}, row {row.target}"


def replaced_cpu() -> str:
    """Expect a name that says what the CPU can, in place of one that the compiler refuses."""
    return cpu("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", VNNI)


def one_core() -> str:
    """Expect one core, and a device that knows."""
    expect(len(os.sched_getaffinity(0)) == 1, "more than one core")
    units = choose_device().info.compute_units
    return f"{units} compute unit{'s' if units > 1 else ''}"


def little_memory() -> str:
    """Expect that more than the limit cannot be had."""
    try:
        np.zeros(MEMORY_BYTES + 1, np.uint8)
    except MemoryError:
        return f"{MEMORY_BYTES >> 30} GiB"
    return sys.exit("not in force: more memory could be had")


def temporary_cache() -> str:
    """Expect the home to take no file, and the cache to be a temporary one."""
    home = Path(os.environ["HOME"])
    try:
        home.mkdir(exist_ok=True)
        (home / "file").touch()
    except OSError as error:
        found = cache_dir()
        expect(found.name.startswith("modeld-cache-"), f"the cache is {found}")
        return error.strerror or "refused"
    return sys.exit(f"not in force: {home} can be written")


def no_home() -> str:
    """Expect none of the variables, and a cache all the same."""
    expect(not {"HOME", "USER", "XDG_CACHE_HOME"} & set(os.environ), "HOME, USER or XDG_CACHE_HOME")
    del os.environ["MODELD_CACHE_DIR"]
    expect(cache_dir().is_dir(), "there is no cache directory")
    return "no HOME"


def odd_path() -> str:
    """Expect the code itself, and what it writes, below the odd directory."""
    for path in (__file__, tempfile.gettempdir(), str(cache_dir()), os.environ["HOME"]):
        expect(ODD_NAME in path, path)
    return "code, cache, home, temporary files"


def locale_c() -> str:
    found = locale.getpreferredencoding(do_setlocale=False)
    expect(sys.flags.utf8_mode == 0, "UTF-8 mode")
    expect(found in ("ANSI_X3.4-1968", "US-ASCII"), found)
    return found


def terminal() -> str:
    """Expect few columns and private files."""
    expect(shutil.get_terminal_size().columns == 20, "columns")
    mask = os.umask(0)
    os.umask(mask)
    expect(mask == 0o077, f"umask {mask:o}")
    return "20 columns"


def small_shm() -> str:
    size = shutil.disk_usage(SHM).total
    expect(size == SHM_BYTES, f"{size} bytes")
    return f"{size >> 20} MiB"


def no_linker() -> str:
    """Expect no linker; PoCL links with the `linker` extra, or is refused in one line."""
    names = ("ld", "ld.lld", "cc", "gcc", "clang", "as")
    expect(not any(map(shutil.which, names)), "there is one in PATH")
    result = command("devices")
    if result.returncode == 0:
        return "PoCL links with ziglang"
    expect(result.returncode == 3, f"`modeld devices` ended with {result.returncode}")
    expect("PoCL needs the linker `ld` on PATH" in result.stderr, result.stderr)
    expect(result.stderr.count("\n") == 1, result.stderr)
    return "PoCL is refused in one line"


PROOFS: dict[str, Callable[[], str]] = {
    "cpu-generic": replaced_cpu,
    "cpu-unknown": replaced_cpu,
    "cpu-avx2": lambda: cpu("x86-64-v3", lanes=8),
    "cpu-sse": lambda: cpu("x86-64-v2", lanes=4),
    "one-core": one_core,
    "memory-4g": little_memory,
    "home-missing": temporary_cache,
    "home-read-only": temporary_cache,
    "no-home": no_home,
    "odd-path": odd_path,
    "locale-c": locale_c,
    "terminal": terminal,
    "small-shm": small_shm,
    "no-linker": no_linker,
}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
        timeout=300,
    )


def network() -> onnx.ModelProto:
    """Return a convolution, a sum over space, a product and a softmax."""
    draw = np.random.default_rng(1)
    return parsed(
        """(float[1, 8, 18, 22] x) => (float[1, 10] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (c)
            m = ReduceMean <axes = [2, 3], keepdims = 0> (r)
            q = MatMul (m, p)
            y = Softmax (q)
        }""",
        w=draw.standard_normal((24, 8, 3, 3)).astype(np.float32),
        p=draw.standard_normal((24, 10)).astype(np.float32),
    )


def end_to_end(directory: Path) -> None:
    """Compile a model, verify it, run it and look into it, each with a command.

    The names hold what the file system's encoding may not know: `os.fsdecode` says how Python then
    writes them.
    """
    name = os.fsdecode("größe 1".encode())
    model, artifact = directory / f"{name}.onnx", directory / f"{name}.pkl"
    inputs, outputs = directory / f"{name} in.npz", directory / f"{name} out.npz"
    model.write_bytes(network().SerializeToString())
    np.savez(str(inputs), x=np.random.default_rng(2).random((1, 8, 18, 22), np.float32))
    for arguments in (
        ("compile", "--plain", str(model), "-o", str(artifact), "--verify"),
        ("exec", str(artifact), "--inputs", str(inputs), "--outputs", str(outputs)),
        ("inspect", str(artifact)),
    ):
        result = command(*arguments)
        if result.returncode != 0 or "Traceback" in result.stderr:
            sys.exit(f"modeld {arguments[0]}: {result.returncode}\n{result.stdout}{result.stderr}")
    with np.load(str(outputs)) as found:
        total = float(found["y"].sum())
    if not abs(total - 1) < 1e-5:
        sys.exit(f"the sum of a softmax is {total}")


def main() -> int:
    """Prove the condition that the command line names."""
    in_force = PROOFS[sys.argv[1]]()
    if any(not device.problem for device in list_devices()):
        with tempfile.TemporaryDirectory(prefix="modeld-proof-") as directory:
            end_to_end(Path(directory))
    print(in_force)
    return 0


if __name__ == "__main__":
    sys.exit(main())
