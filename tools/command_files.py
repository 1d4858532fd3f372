"""The table of options that name files and directories, and their check before a command begins.

`tools.cli` calls `check_files` before it runs a command. `COMMAND_FILES` lists, for each command,
the options for files that it writes and reads. Each file to read has a role, which specifies the
accepted kinds of files. Add every new option that names a file: one test compares the table with
the options, and another passes unsuitable files to each of them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime.files.user_file import open_given
from tools.errors import (
    CompareError,
    DriveError,
    LabelsError,
    TelemetryError,
    UsageError,
    VideoError,
)
from tools.lib.named_file import GIB, MIB, NOUNS, Role, check_named, check_outputs, tree

_MAY_BE_ONNX = b"\x08"  # tag of field 1, ir_version, with which an ONNX model begins

_VIDEO: Final = frozenset({"video", "picture"})
_TEXT: Final = frozenset({"text", "json"})
# The size limit is that of `runtime.format.artifact`: a manifest and 16 GiB of data.
ARTIFACT: Final = Role(
    "an artifact",
    frozenset({"artifact"}),
    max_bytes=17 * GIB,
    advice="modeld compile makes one of ONNX files",
)
# Almost all kinds pass here, because the importer explains better what is wrong with them. 2 GiB is
# protobuf's limit.
ONNX: Final = Role("an ONNX model", frozenset(NOUNS) - {"log", "video", ""}, max_bytes=2 * GIB)
LOG: Final = Role("an event log", frozenset({"log"}), advice="give an rlog, a qlog or a replay's")
MODEL: Final = Role("an artifact or an ONNX model", ARTIFACT.kinds | ONNX.kinds, max_bytes=17 * GIB)
MODEL_OR_LOG: Final = Role(
    "an artifact, an ONNX model or an event log", frozenset({"artifact", "onnx", "log"})
)
LOG_OR_RESULT: Final = Role(
    "an event log, a closed-loop result or a directory of logs",
    LOG.kinds | {"json"},
    may_be_directory=True,
    advice=LOG.advice,
)
VIDEO: Final = Role("a video", _VIDEO, VideoError)
# The name of a route need not be a path, and a segment can be named by its log.
DRIVE: Final = Role(
    "a segment, a route, a comma2k19 segment or a video",
    _VIDEO | {"log"},
    DriveError,
    may_be_directory=True,
    may_be_missing=True,
)
# All kinds are accepted, because an unreadable drive is only one result of several.
DRIVES: Final = replace(DRIVE, kinds=frozenset(NOUNS))
LOG_OR_DRIVE: Final = replace(DRIVE, noun="an event log, a segment or a route")
MODEL_OR_DRIVE: Final = replace(DRIVE, noun="an artifact", kinds=DRIVE.kinds | ARTIFACT.kinds)
TELEMETRY: Final = Role(
    "a telemetry CSV or a comma2k19 segment",
    frozenset({"text"}),
    TelemetryError,
    256 * MIB,
    may_be_directory=True,
)
SEGMENT: Final = Role("the directory of a comma2k19 segment", error=TelemetryError)
LABELS: Final = Role("a JSON file of labels", frozenset({"json"}), LabelsError, 64 * MIB)
TRUTH: Final = Role(
    "the truth of a rendered drive",
    frozenset({"zip"}),
    CompareError,
    may_be_directory=True,
    advice="modeld make-drive writes one into each segment",
)
ARRAYS: Final = Role("an .npz of named arrays", frozenset({"zip"}), UsageError)
TOML: Final = Role("a TOML file", frozenset({"text"}), UsageError, MIB, may_be_empty=True)
JSON: Final = Role("a JSON file", frozenset({"json"}), UsageError, 64 * MIB)
LAYOUT: Final = replace(JSON, noun="a layout of the live view", max_bytes=64 << 10)
CAMERA: Final = replace(TOML, noun="a TOML or JSON file", kinds=_TEXT)
GATES: Final = replace(TOML, noun="a text file of gates", max_bytes=64 << 10)
PROGRAM: Final = Role(
    "a program", frozenset({"program", "text"}), UsageError, GIB, may_be_missing=True
)
CHECKOUT: Final = Role("the directory of a checkout")
PARAMS: Final = Role("the directory of parameters", error=UsageError)
KEYS: Final = Role("a directory of keys", advice="make one: modeld keys DIRECTORY")
STORE: Final = Role("a store of models", may_be_missing=True)
HISTORY: Final = Role(
    "a history",
    error=UsageError,
    may_be_directory=True,
    advice="modeld bench, compare, drive and regress write one with --history",
)
REFERENCES: Final = Role("a directory of references", error=UsageError, may_be_missing=True)
MODEL_OR_REFERENCES: Final = replace(
    ARTIFACT, noun="an artifact or a directory of references", may_be_directory=True
)


class More(NamedTuple):
    """Files and directories that no option names, keyed by the name that error messages use.

    The `reads` have no roles: they are only compared with the outputs.
    """

    files: Mapping[str, Path | None] = {}  # files to write
    reads: Mapping[str, Path | None] = {}  # files to read
    directories: Mapping[str, Path | None] = {}  # directories to write files in


def _compile(args: argparse.Namespace) -> More:
    from scheduler.flags import Flags

    return More({"VIZ": None if args.viz is not None else Flags.from_environment().viz_file})


def _train(args: argparse.Namespace) -> More:
    # With --eight-bits, the weights of an earlier training run are read and rounded.
    return More(reads={} if args.eight_bits is None else {"directory": args.directory})


def _replay(args: argparse.Namespace) -> More:
    from tools.playback.lock import lock_path
    from tools.playback.outcome import frames_path

    output = args.output
    if os.path.isdir(output):  # noqa: PTH112 - of any name, too long ones as well
        page = None if args.report else output / "report.html"
        files = {"page of --output": page, "summary of --output": output / "summary.json"}
        return More(files, directories={"--output": output})
    beside = {"table of --output": frames_path(output), "lock of --output": lock_path(output)}
    return More({"--output": output, **beside})


def _regress(args: argparse.Namespace) -> More:
    return More(directories={"--reference": args.reference if args.update else None})


def _models(args: argparse.Namespace) -> More:
    changes = args.action not in ("list", "show", "verify")
    return More(directories={"--store": args.store if changes else None})


def _demo(args: argparse.Namespace) -> More:
    names = {"page": "report.html", "clip": "drive.webp"}
    return More({f"{one} of --directory": args.directory / name for one, name in names.items()})


def _run(args: argparse.Namespace) -> More:
    from modeld.service.config_sources import load_config
    from tools.service.options import settings_given

    if args.config is not None:  # check it now, because it is read here
        check_named("--config ", args.config, TOML)
    config = load_config(args.config, os.environ, settings_given(args))
    names = ("model", "fallback_model", "models_dir", "params_dir", "bus_keys")
    return More(
        {"metrics_file": config.metrics_file},
        {name: getattr(config, name) for name in names},
        {"state_dir": config.state_dir},
    )


@dataclass(frozen=True, slots=True)
class Files:
    """The options and positional arguments of a command that name files."""

    files: tuple[str, ...] = ()  # for files to write
    directories: tuple[str, ...] = ()  # for directories to write files in
    reads: Mapping[str, Role] = field(default_factory=dict)  # for files to read, with their roles
    # Returns files that are not named by an option.
    more: Callable[[argparse.Namespace], More] | None = None


_BUS: Final = {"--bus-keys": KEYS}
# Options of `add_drive_arguments`.
_DRIVE: Final = {"--telemetry": TELEMETRY, "--camera": CAMERA}
COMMAND_FILES: Mapping[str, Files] = {
    "make-model": Files(directories=("directory",)),
    "compile": Files(("--output", "--viz"), reads={"model": ONNX}, more=_compile),
    "inspect": Files(
        ("--output", "--viz"),
        reads={"file": MODEL_OR_LOG, "--schema": CHECKOUT, "--times": JSON},
    ),
    "exec": Files(("--outputs",), reads={"artifact": MODEL, "--inputs": ARRAYS}),
    "selftest": Files(reads={"artifact": ARTIFACT}),
    "bench": Files(
        ("--trace",),
        ("--history",),
        {
            "path": MODEL_OR_LOG,
            "--inputs": ARRAYS,
            "--model": ARTIFACT,
            "--monitoring": ARTIFACT,
        },
    ),
    "devices": Files(),
    "doctor": Files(("--output",), reads={"artifact": ARTIFACT, "--store": STORE, **_BUS}),
    "train": Files(directories=("directory", "--export"), more=_train),
    "make-drive": Files(directories=("directory",), reads={"--telemetry": SEGMENT}),
    "replay": Files(
        ("--report", "--video", "--rerun"),
        # The drive can follow --model on the command line and then counts as one of its values.
        reads={"--monitoring": ARTIFACT, "drives": DRIVE, "--model": MODEL_OR_DRIVE, **_DRIVE},
        more=_replay,
    ),
    "footage": Files(
        ("--report",),
        reads={"clip": VIDEO, "--labels": LABELS, "--model": ARTIFACT, "--telemetry": TELEMETRY},
    ),
    "compare": Files(
        ("--html",),
        ("--history",),
        {
            "left": LOG_OR_RESULT,
            "right": LOG_OR_RESULT,
            "more": LOG_OR_RESULT,
            "--truth": TRUTH,
            "--tolerances": TOML,
            "--gates": GATES,
        },
    ),
    "history": Files(("--html",), reads={"history": HISTORY}),
    "regress": Files(
        ("--report", "--junit", "--markdown"),
        ("--work", "--pictures", "--history"),
        {
            "--model": ARTIFACT,
            "--monitoring": ARTIFACT,
            "--baseline": ARTIFACT,
            "--baseline-tree": CHECKOUT,
            "--against": MODEL_OR_REFERENCES,
            "--bisect": ARTIFACT,
            "--onnx": ONNX,
            "--drives": DRIVES,
            "--reference": REFERENCES,
            "--tolerances": TOML,
            "--gates": GATES,
            **_DRIVE,
        },
        more=_regress,
    ),
    "export": Files(
        ("--mcap", "--video", "--rerun"), reads={"log": LOG, "--drive": DRIVE, **_DRIVE}
    ),
    "run": Files(reads={"--config": TOML}, more=_run),
    "config": Files(reads={"--config": TOML}),
    "status": Files(reads={"--config": TOML, **_BUS}),
    "params": Files(reads={"--config": TOML, "--params": PARAMS}),
    "models": Files(reads={"file": ARTIFACT, "--config": TOML, "--store": STORE}, more=_models),
    "install-unit": Files(directories=("--prefix",), reads={"--bin": PROGRAM}),
    "keys": Files(directories=("directory",)),
    "subscribe": Files(("--output",), reads=_BUS),
    "bridge": Files(reads=_BUS),
    "view": Files(
        reads={
            "log": LOG_OR_DRIVE,
            "--with": LOG_OR_DRIVE,
            "--drive": DRIVE,
            "--layout": LAYOUT,
            **_DRIVE,
            **_BUS,
        }
    ),
    "play": Files(reads={"drive": DRIVE, **_DRIVE, **_BUS}),
    "drive": Files(
        ("--log", "--report", "--lines"),
        ("--history",),
        {"--model": ARTIFACT, "--gates": GATES},
    ),
    "demo": Files(directories=("--directory",), reads={"--model": ARTIFACT}, more=_demo),
}


def attribute(option: str) -> str:
    """Return the attribute of an option or argument in the parsed arguments."""
    return option.lstrip("-").replace("-", "_")


def check_files(args: argparse.Namespace, also: Mapping[str, Path] | None = None) -> None:
    """Check the outputs, then the inputs of a command.

    No output may overwrite an input or be inside one, and each input must fit its role. `also` are
    additional files that the command writes, keyed by the name that error messages use.

    Raises:
        UsageError: An output is unsuitable, see `check_outputs`.
        ToolError: The error of the role of an unsuitable input.
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
    for name, role in row.reads.items():
        where = f"{name} " if name.startswith("-") else ""
        for path in _paths(args, name):
            check_named(where, path, role)


def _inputs(args: argparse.Namespace, row: Files) -> dict[str, list[Path]]:
    """Return the input files and directories of a command, by option."""
    found: dict[str, list[Path]] = {}
    for name, role in row.reads.items():
        if role in (DRIVE, LOG_OR_DRIVE, MODEL_OR_DRIVE):
            found[name] = _of_drives(args, name)
            continue
        found[name] = [one for path in _paths(args, name) for one in tree(path)]
        if role in (ONNX, MODEL_OR_LOG):
            found[name] += [one for path in _paths(args, name) for one in _data_beside(path)]
    return found


def _of_drives(args: argparse.Namespace, option: str) -> list[Path]:
    """Return the files that are read for the drives named by an option."""
    from tools.drives.open_drive import DriveOptions, input_files

    options = DriveOptions(data_dir=getattr(args, "data_dir", None))
    texts = [str(value) for value in _values(args, option)]
    return [one for text in texts for one in input_files(text, options)]


def _data_beside(path: Path) -> list[Path]:
    """Return the external files with the weights of an ONNX model."""
    try:
        with open_given(path) as file:
            if file.read(1) != _MAY_BE_ONNX:
                return []
    except OSError:
        return []
    # Import here, because inspecting artifacts and logs must not require onnx.
    from scheduler.onnx_import.files.tensor_data import external_files

    return external_files(path)


def _paths(args: argparse.Namespace, option: str) -> Iterator[Path]:
    return map(Path, _values(args, option))


def _values(args: argparse.Namespace, option: str) -> list[Any]:
    value = getattr(args, attribute(option), None)
    return [] if value is None else value if isinstance(value, list) else [value]
