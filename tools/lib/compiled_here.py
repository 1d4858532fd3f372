"""ONNX files that a command compiles for its own use, into a directory that it deletes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tools.errors import UsageError
from tools.lib.bindings import parse_bindings
from tools.lib.constants import with_constants
from tools.lib.file_kind import kind_of

if TYPE_CHECKING:
    from scheduler.compile import CompileOptions


class Changes(NamedTuple):
    """What is changed of a model while it is compiled.

    Attributes:
        bind: sizes of symbolic dimensions, as of ``--bind``.
        constant: values of inputs, as of ``--constant``.
        dump: nodes whose values become outputs.
    """

    bind: Sequence[str] = ()
    constant: Sequence[str] = ()
    dump: Sequence[str] = ()


UNCHANGED: Final = Changes()


def is_onnx(path: Path) -> bool:
    """Tell whether a file is an ONNX model.

    Raises:
        FileKindError: it cannot be read, or is of no known kind.
    """
    return kind_of(path) == "onnx"


def compiled_here(
    paths: Sequence[Path],
    target: Path,
    device: str | None,
    changes: Changes = UNCHANGED,
    *,
    build: bool = False,
) -> Path:
    """Compile ONNX files for a device of this machine, as ``modeld compile`` does; return `target`.

    Args:
        paths: one model, which is compiled as it is, or those of a driving program.
        target: artifact to write.
        device: as ``--device`` names it; None: the best.
        changes: of a single model.
        build: write binaries, too; without them, loading takes kernels from the cache or builds
            them.

    Raises:
        UsageError: several models with changes: a driving program fixes its inputs.
        ModelError: the models cannot be compiled.
    """
    from scheduler.compile import compile_driving, compile_plain
    from scheduler.onnx_import import load_model
    from scheduler.onnx_import.specialise import with_outputs

    options = options_here(device)
    if len(paths) == 1:
        model, sizes = with_constants(
            load_model(paths[0]), changes.constant, parse_bindings(changes.bind)
        )
        if changes.dump:
            model = with_outputs(model, changes.dump)
        compiled = compile_plain(model, bind=sizes, **options)
    elif any(changes):
        raise UsageError(
            "--bind and --constant need one model; a driving program fixes all its inputs"
        )
    else:
        compiled = compile_driving(paths, **options)
    if build:
        compiled = compiled.build(device)
    compiled.write(target)
    return target


def options_here(device: str | None) -> CompileOptions:
    """Return the options of a compilation for a device of this machine, with its table of loops."""
    from runtime.opencl.device import choose_device
    from scheduler.device.targets import AUTO, target_for
    from scheduler.device.tuned_table import table_for

    info = choose_device(device).info
    return {
        "target": target_for(AUTO, device),
        "tables": lambda _, context: table_for(context.spec.target, info.name, info.driver),
    }
