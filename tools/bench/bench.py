"""``modeld bench``: time an artifact and its kernels, other runtimes, the bus, logs or the daemon.

Example::

    modeld bench vision.onnx --duration 5
    modeld bench driving.pkl --iters 200 --warmup 20
    modeld bench policy.pkl --inputs in.npz --profile --json --trace policy.json
    modeld bench driving.pkl --roofline
    modeld bench --against onnxruntime,openvino vision.onnx
    modeld bench --against file:before.pkl vision.onnx
    modeld bench driving.pkl --submission
    modeld bench driving.pkl --paced --beside busy,one-cpu
    modeld bench driving.pkl --paced --realtime --iters 300
    modeld bench --daemon 300 --model driving.pkl --monitoring dmonitoring.pkl
    modeld bench --host --model driving.pkl --iters 300
    modeld bench --start 5 --model driving.pkl
    modeld bench --bus --json
    modeld bench --log rlog.zst

An ONNX file is first compiled for the device, into a directory that is deleted afterwards. Several
files are compiled as a driving program. Inputs come from --inputs; otherwise frames are random NV12
of 1928x1208 from a level camera, and other inputs are normally distributed noise. --iters sets the
number of runs, --duration their total time.

An option that does not apply to the chosen measurement is an error.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runtime.texts import count_text
from tools.errors import UsageError
from tools.lib.model_options import Changes, add_bind, add_constant, compiled_here, is_onnx
from tools.lib.options import MOST_S, above, is_given, real, seed, whole
from tools.report.history import add_history
from tools.timing.run_times import WARM_UP_RUNS

if TYPE_CHECKING:
    import argparse


class Files(NamedTuple):
    """The files that a measurement accepts: their least and greatest number, and their kind."""

    least: int
    most: int
    what: str  # description in errors


# ONNX files are compiled to one artifact.
PROGRAM = Files(1, 3, "an artifact or ONNX models")
MODELS = Files(1, 3, "ONNX models or an artifact")
LOG = Files(0, 1, "at most one log")
NONE = Files(0, 0, "no file")


class Mode(NamedTuple):
    """One measurement."""

    function: str  # dotted name of the function, imported only when it is used
    files: Files
    takes: str  # attribute names of the accepted options; all others are refused


# Measurements by the option that selects them; "" is the one without an option.
MODES = {
    "": Mode(
        "tools.bench.artifact.run",
        PROGRAM,
        "iters duration warmup entry device profile trace no_load seed inputs bind constant "
        "history",
    ),
    "roofline": Mode(
        "tools.bench.artifact.run_roofline", PROGRAM, "iters entry device seed inputs bind constant"
    ),
    "submission": Mode(
        "tools.bench.host.run_submission", PROGRAM, "blocks entry device seed bind constant"
    ),
    "paced": Mode(
        "tools.bench.paced.run",
        PROGRAM,
        "iters entry device seed inputs beside realtime bind constant",
    ),
    "against": Mode("tools.bench.against.run", MODELS, "threads blocks device seed bind constant"),
    "bus": Mode("tools.bench.bus.run", NONE, "seconds model"),
    "log": Mode("tools.bench.log.run", LOG, ""),
    "daemon": Mode("tools.bench.daemon.run", NONE, "model monitoring camera device realtime"),
    "host": Mode("tools.bench.host.run", NONE, "model camera device iters"),
    "start": Mode("tools.bench.start.run", NONE, "model camera device"),
}
# The values of absent options, in modes that accept them; all others are None, False or [].
DEFAULTS = {"warmup": WARM_UP_RUNS, "seed": 0, "threads": 2, "blocks": 8}
ALONE = "bench FILE"  # name, in errors, of the measurement without an option
ITERATIONS = 100  # default number of runs in modes with a fixed number
DURATION_S = 1.0  # default duration of the mode without one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "path",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="artifact or ONNX; with --against ONNX; --log: log",
    )
    parser.add_argument(
        "--iters",
        type=whole("--iters"),
        metavar="N",
        help="timed runs (as many as --duration allows)",
    )
    parser.add_argument(
        "--duration",
        type=above("--duration", 0, MOST_S),
        metavar="S",
        help="time runs for this many seconds, at most --iters of them (1)",
    )
    parser.add_argument(
        "--warmup",
        type=whole("--warmup", 0),
        metavar="N",
        help=f"warm-up runs, which do not count ({WARM_UP_RUNS})",
    )
    parser.add_argument(
        "--inputs", type=Path, metavar="NPZ", help="one array per input, by name (random)"
    )
    parser.add_argument("--seed", type=seed(), help="seed of the random inputs (0)")
    parser.add_argument("--entry", help="entry point (the artifact's first)")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--profile", action="store_true", help="every launch, also with --json")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Chrome trace of the runs"
    )
    parser.add_argument(
        "--no-load", action="store_true", help="skip the two load times (a cold load compiles)"
    )
    add_bind(parser)
    add_constant(parser)
    add_history(parser)
    _add_modes(parser)
    _add_options_of_modes(parser)


def _add_modes(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_argument_group("measure something else").add_mutually_exclusive_group()
    modes.add_argument(
        "--roofline", action="store_true", help="each kernel against the device's ceilings"
    )
    modes.add_argument(
        "--paced", action="store_true", help="runs after pauses of 0, 5, 30 and 50 ms"
    )
    modes.add_argument(
        "--against",
        metavar="PEER[,PEER]",
        help="MODEL.onnx in onnxruntime, openvino, tinygrad, torch; file:OTHER: ours, another "
        "file; more files: the driving program",
    )
    modes.add_argument("--bus", action="store_true", help="latency and rate of the bus")
    modes.add_argument(
        "--log", action="store_true", help="reading a log (one of 100 000 events, made for it)"
    )
    modes.add_argument(
        "--daemon",
        type=real("--daemon", 1, MOST_S),
        metavar="SECONDS",
        help="the daemon process on a live bus",
    )
    modes.add_argument("--host", action="store_true", help="a frame's cost outside its model")
    modes.add_argument(
        "--start",
        type=whole("--start"),
        metavar="STARTS",
        help="from start and from kill to first message",
    )
    modes.add_argument(
        "--submission",
        action="store_true",
        help="recorded launches against single ones",
    )


def _add_options_of_modes(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("options of the modes above")
    options.add_argument(
        "--threads", type=whole("--threads"), help="with --against: threads per peer (2)"
    )
    options.add_argument(
        "--blocks",
        type=whole("--blocks"),
        help="with --against, --submission: blocks of 20 runs (8)",
    )
    options.add_argument(
        "--beside", metavar="WHAT[,WHAT]", help="with --paced: also next to busy, model, one-cpu"
    )
    options.add_argument(
        "--realtime", action="store_true", help="with --paced or --daemon: use real-time scheduling"
    )
    options.add_argument(
        "--seconds",
        type=above("--seconds", 0, 3600),
        metavar="S",
        help="with --bus: seconds at 10 000 messages per second (3)",
    )
    options.add_argument(
        "--model", type=Path, help="with --daemon, --host, --start, --bus: driving artifact"
    )
    options.add_argument(
        "--monitoring", type=Path, help="with --daemon: driver monitoring artifact to run, too"
    )
    options.add_argument(
        "--camera",
        metavar="WxH",
        help="with --daemon, --host: frame size (1928x1208, or the largest that fits)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the chosen measurement and return its exit code.

    Raises:
        UsageError: the arguments contradict each other or do not apply.
        ModelError: a model cannot be compiled.
        RuntimeFault: the artifact or the device cannot be used.
    """
    name = next((name for name in MODES if name and is_given(getattr(args, name))), "")
    mode = MODES[name]
    check_options(args, name)
    for option, value in DEFAULTS.items():
        if getattr(args, option) is None:
            setattr(args, option, value)
    if name and args.iters is None:
        args.iters = ITERATIONS
    elif args.iters is None and args.duration is None:
        args.duration = DURATION_S
    args.compile_s = None
    module, _, function = mode.function.rpartition(".")
    with ExitStack() as stack:
        if mode.files is PROGRAM:
            _compile(args, stack)
        code: int = getattr(importlib.import_module(module), function)(args)
    return code


def check_options(args: argparse.Namespace, name: str) -> None:
    """Check that the options and files apply to the measurement `name`.

    `args` are the parsed arguments, before `DEFAULTS` are filled in.

    Raises:
        UsageError: an option or the number of files does not apply.
    """
    mode, shown = MODES[name], f"--{name}" if name else ALONE
    takes = mode.takes.split()
    for option in dict.fromkeys(" ".join(other.takes for other in MODES.values()).split()):
        if option not in takes and is_given(getattr(args, option)):
            users = [
                f"--{other}" if other else ALONE
                for other, row in MODES.items()
                if option in row.takes.split()
            ]
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(f"{flag}: expected with {', '.join(users)} only, found {shown}")
    least, most, what = mode.files
    if not least <= len(args.path) <= most:
        raise UsageError(f"{shown}: expected {what}, found {count_text(len(args.path), 'file')}")


def _compile(args: argparse.Namespace, stack: ExitStack) -> None:
    """Replace ONNX files in `args.path` with an artifact compiled from them.

    Raises:
        UsageError: artifacts and models are mixed, or there are several artifacts.
    """
    onnx = [is_onnx(path) for path in args.path]
    if (any(onnx) and not all(onnx)) or (len(onnx) > 1 and not any(onnx)):
        raise UsageError(
            f"bench: expected one artifact, or the ONNX models of one program, found "
            f"{count_text(len(onnx), 'file')}"
        )
    if not any(onnx):
        if args.bind or args.constant:
            raise UsageError(
                "--bind and --constant need an ONNX model; an artifact has them built in"
            )
        return
    started_s = time.perf_counter()
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="modeld-bench-"))
    target = Path(directory) / f"{args.path[0].stem}.pkl"
    changes = Changes(args.bind, args.constant)
    args.path = [compiled_here(args.path, target, args.device, changes)]
    args.compile_s = time.perf_counter() - started_s
