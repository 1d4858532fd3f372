"""What `make test-aarch64` does in the place, stage by stage, and what each expects."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tests.conditions.proofs import network
from tests.debian.emulation import left_out
from tests.debian.place import SCRATCH, Place, Say
from tests.debian.wheels import ROOT, pip_command, requirements
from tests.tools.tiny_driving import write_tiny_driving

_MODELS: Final = ROOT / "tools/models"
_FRAMES: Final = 20
# Compiling a driving model takes qemu minutes, and a machine may have other work.
_LONG_S: Final = 3000.0
_QUICK_TESTS: Final = ("tests/cereal/test_frames.py", "tests/cereal/test_frame_format.py")
_TOGETHER: Final = ("-n2", "--dist", "loadfile")


class StageError(Exception):
    """A stage found something else than it expected; the message ends with what was printed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        name: for the command line.
        what: one line.
        run: does it, and returns in a few words what was found.
        is_quick: whether the reduced run has it.
        after: the stage that has to be over before.
    """

    name: str
    what: str
    run: Callable[[Place, Say], str]
    is_quick: bool = False
    after: str = ""


def devices(place: Place, _: Say) -> str:
    """PoCL is found, and without it a driver for this processor is named."""
    listed = json.loads(checked(place, "-m", "modeld", "--json", "devices"))
    (taken,) = [d for d in listed["devices"] if d["index"] == listed["auto"]]
    none = place.python("-m", "modeld", "devices", environment={"OCL_ICD_VENDORS": "/nowhere"})
    expect(none.returncode == 3 and none.stdout.count("\n") == 1, "one line, code 3", none.stdout)
    expect("apt-get install pocl-opencl-icd" in none.stdout, "Debian's PoCL named", none.stdout)
    return f"{taken['platform']}, {taken['name']}, {taken['simd']}"


def commands(place: Place, _: Say) -> str:
    """A network is compiled, verified, run and looked into, all of it there."""
    code = (
        "from pathlib import Path; from tests.conditions.proofs import end_to_end; "
        "import tempfile; end_to_end(Path(tempfile.mkdtemp()))"
    )
    checked(place, "-c", code)
    return "compile --verify, exec, inspect"


def artifacts(place: Place, _: Say) -> str:
    """What this machine compiled loads there, and strict numerics give the same bytes on both."""
    model, inputs = place.scratch / "network.onnx", place.scratch / "in.npz"
    model.write_bytes(network().SerializeToString())
    np.savez(inputs, x=np.random.default_rng(2).random((1, 8, 18, 22), np.float32))
    gpu = place.scratch / "gpu.pkl"
    ours("compile", "--plain", model, "-o", gpu, "--target", "adreno", "--no-binary")
    checked(place, "-m", "modeld", "selftest", f"{SCRATCH}/gpu.pkl")
    strict = place.scratch / "strict.pkl"
    ours("compile", "--plain", model, "-o", strict, "--numerics", "strict")
    ours("exec", strict, "--inputs", inputs, "--outputs", place.scratch / "here.npz")
    words = ("--inputs", f"{SCRATCH}/in.npz", "--outputs", f"{SCRATCH}/there.npz")
    checked(place, "-m", "modeld", "exec", f"{SCRATCH}/strict.pkl", *words)
    here, there = (np.load(place.scratch / f"{name}.npz")["y"] for name in ("here", "there"))
    expect(here.tobytes() == there.tobytes(), f"the bytes of {here}", str(there))
    return "target adreno passes its self-test, strict numerics give the same bytes"


def freedreno(place: Place, _: Say) -> str:
    """Mesa's driver for Adreno takes artifacts that this machine compiled, to the last launch."""
    answers, library = Path(__file__).with_name("no_faults.c"), place.scratch / "no_faults.so"
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", f"{place.machine}-linux-gnu")
    words = (*zig, "-shared", "-fPIC", "-Wall", "-Werror", str(answers), "-o", str(library))
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    expect(built.returncode == 0, f"ziglang to compile {answers.name}", built.stderr)
    model = place.scratch / "network.onnx"
    model.write_bytes(network().SerializeToString())
    compiled = {"network": (model, "freedreno"), "network-gpu": (model, "gpu")}
    compiled["policy"] = (_MODELS / "policy.onnx", "freedreno")
    for name, (source, target) in compiled.items():
        ours("compile", "--plain", source, "-o", place.scratch / f"{name}.pkl",
             "--target", target, "--no-binary")  # fmt: skip
    shim = "/usr/lib/aarch64-linux-gnu/libfreedreno_noop_drm_shim.so"
    environment = {
        "FD_GPU_ID": "630",
        "MESA_SHADER_CACHE_DISABLE": "true",
        "OCL_ICD_VENDORS": "/etc/OpenCL/vendors/rusticl.icd",
        # For the processes in the place; the programs that enter it are of this machine.
        "QEMU_SET_ENV": f"LD_PRELOAD={SCRATCH}/{library.name}:{shim}",
        "RUSTICL_ENABLE": "freedreno",
    }
    files = [f"{SCRATCH}/{name}.pkl" for name in compiled]
    done = place.python(
        "-m", "tests.debian.on_freedreno", *files, timeout_s=_LONG_S, environment=environment
    )
    expect(done.returncode == 0, "every launch to be enqueued", done.stdout)
    return done.stdout.strip().splitlines()[-1]


def wheels(place: Place, _: Say) -> str:
    """Everything a developer installs can be had for that processor; nothing is downloaded."""
    wanted = requirements(("dev",), place.machine)
    # Nothing is written there, but without a folder pip refuses another machine's wheels.
    command = pip_command(wanted, place.machine, "--dry-run", f"--target={place.scratch}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, "wheels of modeld[dev]", done.stdout + done.stderr)
    return f"{len(wanted)} requirements of modeld[dev]"


def some_tests(place: Place, say: Say) -> str:
    """A few files of tests."""
    return _pytest(place, say, "not slow", *_QUICK_TESTS)


def tests(place: Place, say: Say) -> str:
    return _pytest(place, say, "not slow", *_TOGETHER, "tests/cereal", "tests/runtime")


def tests_together(place: Place, say: Say) -> str:
    """What `make test` runs on several processes."""
    return _pytest(place, say, "not slow and not alone", *_TOGETHER)


def tests_alone(place: Place, say: Say) -> str:
    """What `make test` runs by itself."""
    return _pytest(place, say, "not slow and alone")


def _pytest(place: Place, say: Say, marks: str, *more: str) -> str:
    options = ["-q", "-p", "no:cacheprovider", "-m", marks]
    if place.emulator is not None:
        options += ["-o", f"timeout={_LONG_S:.0f}"]
    for reason, names in left_out(place, within=more):
        say(f"left out, as {reason}: {', '.join(names)}")
        options += [f"--deselect={name}" for name in names]
    done = place.python("-m", "pytest", *options, *more, timeout_s=_LONG_S)
    # Whoever chooses tests may choose none of a stage, which pytest ends with 5.
    good = (0, 5) if os.environ.get("PYTEST_ADDOPTS") else (0,)
    expect(done.returncode in good, "all tests to pass", done.stdout)
    return done.stdout.strip().splitlines()[-1].strip("= ")


def trained(place: Place, _: Say) -> str:
    """The trained model, compiled here, passes its self-test there."""
    words = ("-m", "modeld", "selftest", _driving(place))
    printed = checked(place, *words, timeout_s=_LONG_S)
    return next(line for line in printed.splitlines() if "self-test passed" in line)


def _driving(place: Place) -> str:
    """Compile the trained model on this machine, if no stage did; return its name in the place."""
    artifact = place.scratch / "driving.pkl"
    if not artifact.exists():
        models = (_MODELS / "vision.onnx", _MODELS / "policy.onnx")
        ours("compile", *models, "-o", artifact, "--target", "cpu")
    return f"{SCRATCH}/{artifact.name}"


def replay(place: Place, _: Say) -> str:
    """A drive is played here and there, and both logs agree."""
    ours("make-drive", place.scratch / "drive", "--seconds", "2", "--seed", "1")
    (drive,) = (path.name for path in (place.scratch / "drive").iterdir() if path.is_dir())
    model, common = _driving(place), ("--limit", str(_FRAMES), "--no-progress")
    log = place.scratch / "here.rlog"
    ours("replay", place.scratch / "drive" / drive, "--model", place.scratch / "driving.pkl",
         "-o", log, *common)  # fmt: skip
    words = (f"{SCRATCH}/drive/{drive}", "--model", model)
    there = ("-o", f"{SCRATCH}/there.rlog", *common)
    checked(place, "-m", "modeld", "replay", *words, *there, timeout_s=_LONG_S)
    return ours("compare", log, place.scratch / "there.rlog").strip().splitlines()[0]


def daemon(place: Place, _: Say) -> str:
    """The daemon's process answers a slow camera's frames, and ends when it is told to."""
    write_tiny_driving(place.scratch / "tiny.pkl", (1928, 1208))
    words = ("-m", "tests.debian.slow_daemon", f"{SCRATCH}/tiny.pkl")
    return checked(place, *words, timeout_s=_LONG_S).strip().splitlines()[-1]


def checked(place: Place, *arguments: str, timeout_s: float = 900) -> str:
    """Run Python there, and return what it printed."""
    done = place.python(*arguments, timeout_s=timeout_s)
    expect(done.returncode == 0, f"{' '.join(arguments)} to succeed", done.stdout)
    return done.stdout


def ours(*arguments: str | Path) -> str:
    """Run a command of ours on this machine, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "modeld", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    what = f"modeld {arguments[0]} to succeed on this machine"
    expect(done.returncode == 0, what, done.stdout + done.stderr)
    return done.stdout


def expect(holds: bool, what: str, found: str) -> None:
    """Raise StageError with the end of what was found if something does not hold."""
    if not holds:
        raise StageError(f"expected {what}, found:\n{found[-6000:]}")
