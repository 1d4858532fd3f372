"""Other runtimes (peers) that run the same ONNX file, each with its best settings.

If a peer's documentation does not say which settings are fastest (spinning workers, pinned
threads), the peer has several *variants*. A benchmark times all of them and uses the fastest. A
variant gets its inputs before the timing starts, and keeps its outputs in its own memory, so that
only the call is timed. To add a peer, write an `_open_...` function and a line in ``PEERS``. The
packages are imported only when a peer is used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.errors import ToolError, UsageError

# The execution providers of onnxruntime.
_CPU: Final = "CPUExecutionProvider"
_CUDA: Final = "CUDAExecutionProvider"

Arrays = Mapping[str, NDArray[Any]]


class PeerError(ToolError):
    """A peer is installed but cannot run the model on this machine."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A model opened in a peer with certain settings."""

    options: str  # the settings, for reports; unique among the variants of a peer
    run: Callable[[], object]  # runs the model once
    outputs: Callable[[], dict[str, NDArray[Any]]]  # returns copies of the last run's outputs


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer, installed or not."""

    extra: str  # extra of modeld that installs it
    # (path of the model, inputs, number of threads) -> the opened variants
    open_variants: Callable[[Path, Arrays, int], Sequence[Variant]]


def check_installed(names: Sequence[str]) -> None:
    """Check that the peers are known and installed.

    Raises:
        UsageError: a peer is unknown or not installed; the message names the extra to install.
    """
    for name in names:
        peer = PEERS.get(name)
        if peer is None:
            raise UsageError(
                f"--against: expected one of {', '.join(PEERS)}, found {name!r}; choose from these"
            )
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"--against {name}: expected the package {name} to be installed, found none; "
                f"install it with: pip install 'modeld[{peer.extra}]'"
            )


def installed() -> list[str]:
    """Return the names of the installed peers."""
    return [name for name in PEERS if importlib.util.find_spec(name) is not None]


def version_of(name: str) -> str:
    """Return the version of an installed peer."""
    return metadata.version(name)


def open_peer(name: str, path: Path, inputs: Arrays, threads: int) -> Sequence[Variant]:
    """Open a model in an installed peer and return its variants.

    `name` is a key of ``PEERS``, `path` the ONNX file, `inputs` the arrays by input name. `threads`
    includes the calling thread.

    Raises:
        PeerError: the peer rejects the model, or does not work on this machine.
    """
    try:
        return PEERS[name].open_variants(path, inputs, threads)
    except Exception as error:
        # Peers raise errors of many classes. Each is reported as the peer's failure in one line.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PeerError(
            f"{name} {version_of(name)}: expected it to open {path}, found {type(error).__name__}: "
            f"{reason}; leave it out of --against"
        ) from error


def _open_onnxruntime(path: Path, inputs: Arrays, threads: int) -> Sequence[Variant]:
    """Open onnxruntime with all graph optimizations, sequentially, with bound inputs and outputs.

    One variant has spinning workers and one has not. Spinning, the default, reacts faster but uses
    a core between frames. A build with CUDA adds a variant on the GPU; arrays stay on the host, as
    they do in our runs.
    """
    import onnxruntime

    processors = [_onnxruntime_variant(path, inputs, threads, spin=spin) for spin in (True, False)]
    if _CUDA not in onnxruntime.get_available_providers():
        return processors
    try:
        return [*processors, _onnxruntime_variant(path, inputs, threads, spin=True, on=_CUDA)]
    except Exception:  # noqa: BLE001 -- its own classes, if the GPU or its library is missing
        return processors


def _onnxruntime_variant(
    path: Path, inputs: Arrays, threads: int, *, spin: bool, on: str = _CPU
) -> Variant:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # log errors only, no warnings
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    providers = list(dict.fromkeys((on, _CPU)))
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    if session.get_providers()[0] != on:  # onnxruntime falls back to the CPU with only a warning
        raise RuntimeError(f"{on} cannot be used")
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    names = [output.name for output in session.get_outputs()]
    for name in names:
        binding.bind_output(name, "cpu")

    def outputs() -> dict[str, NDArray[Any]]:
        arrays = binding.copy_outputs_to_cpu()
        return {name: np.array(array) for name, array in zip(names, arrays, strict=True)}

    return Variant(
        f"{threads} threads, all graph optimizations, {'spinning' if spin else 'no spinning'}"
        + ("" if on == _CPU else ", CUDA"),
        lambda: session.run_with_iobinding(binding),
        outputs,
    )


def _open_openvino(path: Path, inputs: Arrays, threads: int) -> Sequence[Variant]:
    """Open OpenVINO with the latency hint, in float32 (its default is bfloat16 on some CPUs).

    One variant pins its threads to CPUs, the other does not.
    """
    with _kept_signal_stack():
        return [_openvino_variant(path, inputs, threads, pin=pin) for pin in (True, False)]


@contextmanager
def _kept_signal_stack() -> Iterator[None]:
    """Restore this thread's alternative signal stack afterwards (Linux: sigaltstack(2)).

    OpenVINO 2026.4 replaces it with one that it unmaps together with the model. The next Ctrl-C
    would then crash the process.
    """

    class Stack(ctypes.Structure):
        _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    libc, before = ctypes.CDLL(None), Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)


def _openvino_variant(path: Path, inputs: Arrays, threads: int, *, pin: bool) -> Variant:
    import openvino

    compiled = openvino.Core().compile_model(
        str(path),
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": pin,
        },
    )
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        # With shared memory the request reads our array, so that no run copies its inputs.
        name = next(name for name in sorted(port.names) if name in inputs)
        request.set_tensor(port, openvino.Tensor(inputs[name], shared_memory=True))

    def outputs() -> dict[str, NDArray[Any]]:
        return {
            name: np.array(request.get_tensor(port).data)
            for port in compiled.outputs
            for name in sorted(port.names)
        }

    return Variant(
        f"{threads} threads, latency hint, f32, {'pinned' if pin else 'not pinned'}",
        lambda: request.infer(share_outputs=True),
        outputs,
    )


def _open_tinygrad(path: Path, inputs: Arrays, threads: int) -> Sequence[Variant]:
    """Open tinygrad on OpenCL with TinyJit, which records kernels and replays them; no search."""
    from runtime.opencl.binding import cl  # tinygrad finds PoCL only if pyopencl is loaded

    cl.get_platforms()
    libraries = sorted((Path(cl.__file__).parent / ".libs").glob("libOpenCL*"))
    if libraries:
        os.environ.setdefault("OPENCL_PATH", str(libraries[0]))
    os.environ.setdefault("DEV", "CL")

    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(str(path))
    placed = {name: Tensor(array).realize() for name, array in inputs.items()}

    def forward(**tensors: Any) -> dict[str, Any]:
        return {name: tensor.realize() for name, tensor in runner(tensors).items()}

    replayed = TinyJit(forward)
    last: dict[str, NDArray[Any]] = {}

    def run() -> None:
        # Copy the outputs to the host, as the other peers do. Otherwise the call only enqueues.
        last.update({name: tensor.numpy() for name, tensor in replayed(**placed).items()})

    for _ in range(3):  # once to run, once to record, once to replay
        run()
    options = f"{os.environ['DEV']} device, {threads} threads, TinyJit, no kernel search"
    return [Variant(options, run, lambda: {name: np.array(a) for name, a in last.items()})]


def _open_torch(path: Path, inputs: Arrays, threads: int) -> Sequence[Variant]:
    """Open torch in float32 without TF32: operator by operator on a CPU, as one graph on CUDA."""
    import torch

    from tools.timing.torch_model import TorchModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    model = TorchModel(path, device)
    host = {name: torch.from_numpy(array) for name, array in inputs.items()}
    placed = {name: tensor.to(device) for name, tensor in host.items()}
    last: dict[str, NDArray[Any]] = {}

    def forward() -> dict[str, Any]:
        with torch.inference_mode():
            return model(placed)

    found, replay = forward(), None
    if device == "cuda":
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their kernels before the graph is recorded
                forward()
        stream.synchronize()
        replay = torch.cuda.CUDAGraph()
        with torch.cuda.graph(replay):
            found = forward()

    def run() -> None:
        # Copy inputs from the host and outputs to it, as the other peers do.
        results = found
        if replay is None:
            results = forward()
        else:
            for name, tensor in host.items():
                placed[name].copy_(tensor)
            replay.replay()
        last.update({name: tensor.cpu().numpy() for name, tensor in results.items()})

    run()
    options = "CUDA, one graph" if replay is not None else f"{threads} threads, CPU"
    return [Variant(options, run, lambda: {name: np.array(a) for name, a in last.items()})]


PEERS: dict[str, Peer] = {
    "onnxruntime": Peer("bench", _open_onnxruntime),
    "openvino": Peer("bench", _open_openvino),
    "tinygrad": Peer("tinygrad", _open_tinygrad),
    "torch": Peer("train", _open_torch),
}
