"""``modeld bench --against``: compares our speed with other runtimes (peers) on the same model.

A block is 20 frames after a pause of 0.4 s. A round is one block of our program and of each peer,
in rotating order. Ratios are ours / theirs within one round. If a peer has several settings, the
one with the smallest median counts.

One call of ``Program.run`` (inputs copied, kernels run, outputs copied) is compared with one bare
call of the peer, whose inputs are already in place. Sizes and values that `--bind` and `--constant`
fix are fixed for peers, too: they get a model file that contains them.

A peer `file:OTHER` is another program of ours: an artifact, for example from another commit, or an
ONNX file whose inputs have the same names and shapes, such as the same model in fp16.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.texts import count_text
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.model_options import Changes, compiled_here, is_onnx, parse_bindings, with_constants
from tools.lib.named_file import kind_of
from tools.lib.processes import thread_setting
from tools.lib.terminal import format_table
from tools.timing.peers import check_installed, open_peer, version_of
from tools.timing.run_times import (
    FRAMES,
    PAUSE_S,
    Comparison,
    compare,
    max_relative_error,
    measure_rounds,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from runtime import Program
    from tools.timing.peers import Variant

OURS = "ours"
FILE = "file:"  # prefix of a peer that is a file
# protobuf writes at most 2 GiB. Weights of larger models are stored in a separate file.
MAX_INLINE_BYTES = 2**31 - 2**20


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The comparison with one peer.

    `max_rel_err` is the largest |ours - theirs| / max |theirs| of all outputs for the same inputs.
    It is None for a driving program, whose inputs differ from those of its models.
    """

    comparison: Comparison
    version: str  # "" for a program of ours
    options: str  # settings of the fastest variant, which is the compared one
    others: dict[str, float]  # median in ms of each other variant, by its settings
    max_rel_err: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run of the command; `peers` has the given order."""

    models: tuple[str, ...]  # file names
    device: str
    threads: int
    launches: int  # number of kernel launches in our run
    peers: dict[str, PeerResult]

    @property
    def fastest(self) -> str:
        """The fastest peer; a program of ours only if there are no other peers."""
        others = [name for name in self.peers if not name.startswith(FILE)] or self.peers
        return min(others, key=lambda name: self.peers[name].comparison.theirs_ms)


def run(args: argparse.Namespace) -> int:
    """Measure, print the result and return exit code 0.

    Raises:
        UsageError: the arguments contradict each other, or a peer is not installed.
        PeerError: a peer cannot run the model.
        ModelError: the model cannot be compiled.
        RuntimeFault: the device cannot be used.
    """
    names = list(dict.fromkeys(filter(None, args.against.split(","))))
    if not names:
        raise UsageError("--against: expected names of peers such as onnxruntime, found none")
    if (args.bind or args.constant) and (len(args.path) > 1 or kind_of(args.path[0]) == "artifact"):
        raise UsageError(
            "--bind and --constant need one model; a driving program and an artifact fix all their "
            "inputs"
        )
    cores = len(os.sched_getaffinity(0))
    if not 1 <= args.threads <= cores:
        raise UsageError(f"--threads: expected 1 to {cores}, the cores here, found {args.threads}")
    check_installed([name for name in names if not name.startswith(FILE)])
    limit_threads(args.threads, args.device)
    result = measure(args, names)
    if args.json:
        print_json(as_json(result))
    else:
        _print_result(result)
    return 0


def limit_threads(threads: int, device: str | None) -> None:
    """Limit PoCL, if it is our device, to this many threads. GPUs are not affected.

    Raises:
        UsageError: OpenCL is already loaded with another number of threads.
    """
    # PoCL reads the variable once, when the first device is looked up.
    os.environ |= thread_setting(threads)
    from runtime import choose_device

    info = choose_device(device).info
    if info.is_pocl and info.compute_units != threads:
        raise UsageError(
            f"--threads: expected {info.name} to run {threads} threads, found "
            f"{info.compute_units}; restart modeld bench for another number"
        )


def measure(args: argparse.Namespace, names: Sequence[str]) -> Result:
    """Compile the model, open it in every peer, and run all of them in alternating blocks.

    `names` are peers: installed runtimes, or ``file:`` and a path.
    """
    from runtime import load_program

    paths: list[Path] = args.path
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modeld-bench-")))
        artifact = _artifact(paths, directory / "ours.pkl", args)
        program = stack.enter_context(load_program(artifact, args.device))
        given, inputs = _inputs(program, paths, args.seed)

        def ours() -> Mapping[str, NDArray[Any]]:
            return program.run(given)

        theirs = _files_of_peers(args, inputs, directory)
        variants: dict[str, Variant] = {}
        for number, name in enumerate(names):
            if name.startswith(FILE):
                path = Path(name.removeprefix(FILE))
                artifact = _artifact([path], directory / f"{number}.pkl", args)
                other = stack.enter_context(load_program(artifact, args.device))
                opened = [_variant_of(other, path, given)]
            else:
                opened = _open_all(name, theirs, inputs, args.threads)
            variants |= {f"{name}: {variant.options}": variant for variant in opened}
        runs = {OURS: ours} | {key: variant.run for key, variant in variants.items()}
        blocks = measure_rounds(runs, args.blocks, FRAMES, PAUSE_S)
        found = dict(ours()) if len(paths) == 1 else None
        peers = {}
        for name in names:
            own = [key for key in variants if key.startswith(f"{name}: ")]
            medians = {key: compare(blocks[OURS], blocks[key]) for key in own}
            best = min(own, key=lambda key: medians[key].theirs_ms)
            error = None if found is None else max_relative_error(found, variants[best].outputs())
            peers[name] = PeerResult(
                comparison=medians[best],
                version="" if name.startswith(FILE) else version_of(name),
                options=variants[best].options,
                others={
                    variants[key].options: medians[key].theirs_ms for key in own if key != best
                },
                max_rel_err=error,
            )
        return Result(
            models=tuple(path.name for path in paths),
            device=program.stats.device,
            threads=args.threads,
            launches=program.stats.launches[program.entries[0]],
            peers=peers,
        )


def _artifact(paths: Sequence[Path], target: Path, args: argparse.Namespace) -> Path:
    """Return the given artifact, or compile the given models to `target` and return that."""
    if len(paths) == 1 and not is_onnx(paths[0]):
        return paths[0]
    return compiled_here(paths, target, args.device, Changes(args.bind, args.constant), build=True)


def _files_of_peers(
    args: argparse.Namespace, inputs: Sequence[Mapping[str, NDArray[Any]]], directory: Path
) -> Sequence[Path]:
    """Return the model files for the peers; if sizes or inputs are fixed, write one with them."""
    paths: list[Path] = args.path
    if not args.bind and not args.constant:
        return paths
    import onnx

    from scheduler.check.references import whole_model
    from scheduler.onnx_import import load_model

    proto = onnx.ModelProto()
    bind = parse_bindings(args.bind)
    proto.CopyFrom(whole_model(with_constants(load_model(paths[0]), args.constant, bind)[0]))
    for value in proto.graph.input:
        sizes = inputs[0][value.name].shape if value.name in inputs[0] else ()
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
            dim.dim_value = size
    fixed = directory / paths[0].name
    beside = proto.ByteSize() > MAX_INLINE_BYTES
    onnx.save(proto, fixed, save_as_external_data=beside, location=f"{fixed.name}.data")
    return [fixed]


def _inputs(
    program: Program, paths: Sequence[Path], seed: int
) -> tuple[dict[str, NDArray[Any]], list[dict[str, NDArray[Any]]]]:
    """Return the inputs of our program, and the inputs of each model file for the peers."""
    from tools.timing.program_inputs import make_inputs

    own = make_inputs(program.entry_inputs(), seed)
    if len(paths) == 1:
        return own, [own]
    return own, [model_inputs(path, seed) for path in paths]


def _variant_of(program: Program, path: Path, inputs: Mapping[str, NDArray[Any]]) -> Variant:
    """Return another program of ours as a peer, with our inputs converted to its types.

    Raises:
        UsageError: the program has other inputs.
    """
    import numpy as np

    from tools.timing.peers import Variant

    given = {}
    for spec in program.entry_inputs():
        array = inputs.get(spec.name)
        if array is None or array.shape != spec.shape:
            raise UsageError(
                f"--against {FILE}{path}: expected an input {spec.name!r} {spec.shape} of the "
                f"model, found {'none' if array is None else array.shape}; name a file of the "
                "same inputs"
            )
        given[spec.name] = array.astype(spec.dtype)
    launches = count_text(program.stats.launches[program.entries[0]], "launch")
    return Variant(
        launches,
        lambda: program.run(given),
        lambda: {name: np.array(array) for name, array in program.run(given).items()},
    )


def model_inputs(path: Path, seed: int) -> dict[str, NDArray[Any]]:
    """Return the inputs that ``modeld bench`` generates for an ONNX file.

    Raises:
        ModelError: the file is not a valid ONNX model.
    """
    import numpy as np
    import onnx

    from runtime.run.entry import TensorSpec
    from scheduler.onnx_import import load_model
    from tools.timing.program_inputs import make_inputs

    specs = []
    for value in load_model(path).inputs:
        tensor = value.type.tensor_type
        shape = tuple(int(dim.dim_value) for dim in tensor.shape.dim)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        specs.append(TensorSpec(value.name, shape, dtype))
    return make_inputs(specs, seed)


def _open_all(
    name: str, paths: Sequence[Path], inputs: Sequence[dict[str, NDArray[Any]]], threads: int
) -> list[Variant]:
    """Open each model in a peer; return its variants, each of which runs all models in turn."""
    from tools.timing.peers import Variant

    opened = [
        open_peer(name, path, arrays, threads) for path, arrays in zip(paths, inputs, strict=True)
    ]
    if len(opened) == 1:
        return list(opened[0])

    def together(models: tuple[Variant, ...]) -> Variant:
        def frame() -> None:
            for model in models:
                model.run()

        return Variant(models[0].options, frame, models[-1].outputs)

    return [together(models) for models in zip(*opened, strict=True)]


def as_json(result: Result) -> dict[str, Any]:
    """Return the object of ``--json``: the fastest peer at the top level, all under `peers`."""
    peers = {
        name: {
            **asdict(peer.comparison),
            "max_rel_err": peer.max_rel_err,
            "version": peer.version,
            "options": peer.options,
            "other_options_ms": peer.others,
        }
        for name, peer in result.peers.items()
    }
    return {
        "model": " + ".join(result.models),
        "against": result.fastest,
        **peers[result.fastest],
        "device": result.device,
        "threads": result.threads,
        "launches": result.launches,
        "frames_per_block": FRAMES,
        "pause_s": PAUSE_S,
        "peers": peers,
    }


def _print_result(result: Result) -> None:
    print(f"{' + '.join(result.models)} on {result.device}, {result.threads} threads")
    rows = [
        (
            f"{name} {peer.version}".strip(),
            peer.comparison.ours_ms,
            peer.comparison.theirs_ms,
            peer.comparison.ratio,
            f"{peer.comparison.ratio_min:.3f} to {peer.comparison.ratio_max:.3f}",
            peer.comparison.ratio_quiet,
            "-" if peer.max_rel_err is None else f"{peer.max_rel_err:.1e}",
            peer.options,
        )
        for name, peer in result.peers.items()
    ]
    header = ("against", "ours ms", "theirs ms", "ratio", "over the blocks", "quietest")
    print(format_table((*header, "max rel err", "as"), rows))
    best = result.peers[result.fastest].comparison
    verdict = "faster" if best.ratio < 1.0 else "slower"
    print(f"{verdict} than the fastest of them: {best.ratio:.3f} of the time of {result.fastest}")
