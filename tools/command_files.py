"""Which options of each command name files that it writes and reads: one table, checked at once.

`tools.cli` calls `check_files` before a command does anything. A command with a new option that
names a file gets it into its row here; a test compares the rows with the options.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tools.lib.outputs import check_outputs, tree

_MAY_BE_ONNX = b"\x08"  # field 1, ir_version, comes first


class More(NamedTuple):
    """What no option names, by what it is called in messages.

    Attributes:
        files: that are written.
        reads: files and directories that are read.
        directories: that get files.
    """

    files: Mapping[str, Path | None] = {}
    reads: Mapping[str, Path | None] = {}
    directories: Mapping[str, Path | None] = {}


def _compile(args: argparse.Namespace) -> More:
    from scheduler.flags import Flags

    return More({"VIZ": None if args.viz is not None else Flags.from_environment().viz_file})


def _train(args: argparse.Namespace) -> More:
    # Weights are rounded of what a training has left.
    return More(reads={} if args.eight_bits is None else {"directory": args.directory})


def _replay(args: argparse.Namespace) -> More:
    from tools.playback.frame_table import frames_path
    from tools.playback.lock import lock_path

    output = args.output
    if os.path.isdir(output):  # noqa: PTH112 - of any name, too long ones as well
        page = None if args.report else output / "report.html"
        files = {"page of --output": page, "summary of --output": output / "summary.json"}
        return More(files, directories={"--output": output})
    beside = {"table of --output": frames_path(output), "lock of --output": lock_path(output)}
    return More({"--output": output, **beside})


def _regress(args: argparse.Namespace) -> More:
    return More(directories={"--reference": args.reference if args.update else None})


def _demo(args: argparse.Namespace) -> More:
    names = {"page": "report.html", "clip": "drive.webp"}
    return More({f"{one} of --directory": args.directory / name for one, name in names.items()})


def _run(args: argparse.Namespace) -> More:
    from modeld.config_sources import load_config
    from tools.lib.setting_options import settings_given

    config = load_config(args.config, os.environ, settings_given(args))
    names = ("model", "fallback_model", "models_dir", "params_dir", "bus_keys")
    return More(
        {"metrics_file": config.metrics_file},
        {name: getattr(config, name) for name in names},
        {"state_dir": config.state_dir},
    )


@dataclass(frozen=True, slots=True)
class Files:
    """The options of a command that name files, as they are typed; arguments by their attribute.

    Attributes:
        files: are written.
        directories: get files.
        reads: files and directories that are read.
        models: of these, those that may be ONNX files, with data in files beside them.
        drives: what `open_drive` takes.
        more: what no option names.
    """

    files: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    drives: tuple[str, ...] = ()
    more: Callable[[argparse.Namespace], More] | None = None


# Of `add_drive_arguments`.
_DRIVE = ("--telemetry", "--camera")
COMMAND_FILES: Mapping[str, Files] = {
    "make-model": Files(directories=("directory",)),
    "compile": Files(("--output", "--viz"), models=("model",), more=_compile),
    "inspect": Files(("--output", "--viz"), reads=("--schema",), models=("file",)),
    "exec": Files(("--outputs",), reads=("artifact", "--inputs")),
    "selftest": Files(reads=("artifact",)),
    "bench": Files(("--trace",), ("--history",), reads=("path", "--model", "--monitoring")),
    "devices": Files(),
    "doctor": Files(("--output",), reads=("artifact", "--store", "--bus-keys")),
    "train": Files(directories=("directory", "--export"), more=_train),
    "make-drive": Files(directories=("directory",), reads=("--telemetry",)),
    "replay": Files(
        ("--report", "--video", "--rerun"),
        reads=("--monitoring", *_DRIVE),
        # The drive may stand behind --model.
        drives=("drives", "--model"),
        more=_replay,
    ),
    "footage": Files(("--report",), reads=("clip", "--labels", "--model", "--telemetry")),
    "compare": Files(
        ("--html",),
        ("--history",),
        reads=("left", "right", "--tolerances", "--truth", "--gates"),
    ),
    "history": Files(("--html",), reads=("history",)),
    "regress": Files(
        ("--report",),
        ("--work", "--history"),
        (
            *("--model", "--monitoring", "--reference", "--baseline", "--bisect", "--tolerances"),
            *("--gates", *_DRIVE),
        ),
        models=("--onnx",),
        drives=("--drives",),
        more=_regress,
    ),
    "export": Files(("--mcap", "--video", "--rerun"), reads=("log", *_DRIVE), drives=("--drive",)),
    "run": Files(reads=("--config",), more=_run),
    "config": Files(reads=("--config",)),
    "status": Files(reads=("--bus-keys",)),
    "params": Files(reads=("--config", "--params")),
    "models": Files(directories=("--store",), reads=("file", "--config")),
    "install-unit": Files(directories=("--prefix",), reads=("--bin",)),
    "keys": Files(directories=("directory",)),
    "subscribe": Files(("--output",), reads=("--bus-keys",)),
    "bridge": Files(reads=("--bus-keys",)),
    "view": Files(reads=("--bus-keys", *_DRIVE), drives=("log", "--drive")),
    "play": Files(reads=("--bus-keys", *_DRIVE), drives=("drive",)),
    "drive": Files(("--log", "--report", "--lines"), ("--history",), reads=("--model", "--gates")),
    "demo": Files(directories=("--directory",), reads=("--model",), more=_demo),
}


def attribute(option: str) -> str:
    """Return the attribute of an option or argument in what was parsed."""
    return option.lstrip("-").replace("-", "_")


def check_files(args: argparse.Namespace, also: Mapping[str, Path] | None = None) -> None:
    """Refuse what a command was told to write where it would replace or mix with what it reads.

    Args:
        args: of the command.
        also: further files that it writes, by what they are called in messages.

    Raises:
        UsageError: see `check_outputs`.
    """
    row = COMMAND_FILES.get(args.command, Files())
    more = More() if row.more is None else row.more(args)
    files = {name: path for name in row.files for path in _paths(args, name)}
    files = files | {name: path for name, path in more.files.items() if path is not None}
    directories = {name: path for name in row.directories for path in _paths(args, name)}
    directories |= {name: path for name, path in more.directories.items() if path is not None}
    if files or directories:
        inputs = _inputs(args, row)
        inputs |= {name: [*tree(path)] for name, path in more.reads.items() if path is not None}
        check_outputs(files | dict(also or {}), inputs, directories)


def _inputs(args: argparse.Namespace, row: Files) -> dict[str, list[Path]]:
    """Return the files and directories that options name, by option."""
    found = {
        name: [one for path in _paths(args, name) for one in tree(path)]
        for name in (*row.reads, *row.models)
    }
    for name in row.models:
        found[name] += [one for path in _paths(args, name) for one in _data_beside(path)]
    if row.drives:
        from tools.drives.open_drive import DriveOptions, input_files

        options = DriveOptions(data_dir=getattr(args, "data_dir", None))
        for name in row.drives:
            texts = [str(value) for value in _values(args, name)]
            found[name] = [one for text in texts for one in input_files(text, options)]
    return found


def _data_beside(path: Path) -> list[Path]:
    """Return the files that an ONNX model has its weights in."""
    if not os.path.isfile(path):  # noqa: PTH113 - of any name, too long ones as well
        return []
    with path.open("rb") as file:
        if file.read(1) != _MAY_BE_ONNX:
            return []
    # Here: artifacts and logs are looked into without onnx.
    from scheduler.onnx_import.files.external import external_files

    return external_files(path)


def _paths(args: argparse.Namespace, option: str) -> Iterator[Path]:
    return map(Path, _values(args, option))


def _values(args: argparse.Namespace, option: str) -> list[Any]:
    value = getattr(args, attribute(option), None)
    return [] if value is None else value if isinstance(value, list) else [value]
