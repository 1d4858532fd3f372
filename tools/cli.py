"""The ``modeld`` command: parses the command line and runs a sub-command.

`COMMANDS` is the table of sub-commands. A sub-command's module is imported only when it is used, so
``modeld --help`` is fast and a command that does not need OpenCL or ONNX never loads them. Each
command module has ``add_arguments(parser)`` and ``run(args) -> int``.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO, cast

from tools.errors import ExitCode
from tools.lib.options import HelpFormatter, epilog, nearest, split_docstring

if TYPE_CHECKING:
    from types import FrameType

logger = logging.getLogger(__name__)

EXIT_CODES = "exit codes:\n" + "".join(f"  {code:<4} {code.meaning}\n" for code in ExitCode)


class Command(NamedTuple):
    """A sub-command."""

    module: str  # its module, imported on use
    summary: str  # one line for the list of commands


COMMANDS: dict[str, Command] = {
    "make-model": Command("tools.commands.make_model", "write the example ONNX models"),
    "compile": Command("tools.commands.compile", "compile ONNX models into one artifact"),
    "inspect": Command(
        "tools.commands.inspect", "show what is inside an artifact, a model or a log"
    ),
    "exec": Command("tools.commands.exec", "run an artifact once on NumPy inputs"),
    "selftest": Command("tools.commands.selftest", "run the self-test that an artifact carries"),
    "bench": Command("tools.bench.bench", "time an artifact, kernel by kernel"),
    "devices": Command("tools.commands.devices", "list the OpenCL devices and the default one"),
    "doctor": Command(
        "tools.commands.doctor", "check this machine: drivers, device, permissions, kernels"
    ),
    "train": Command(
        "tools.commands.on_drives.train", "train the driving model on rendered worlds"
    ),
    "make-drive": Command(
        "tools.commands.on_drives.make_drive", "render a drive with known ground truth"
    ),
    "replay": Command(
        "tools.commands.on_drives.replay", "send a recorded drive through the daemon's own code"
    ),
    "footage": Command(
        "tools.commands.on_drives.footage", "score a model's lane lines on labelled footage"
    ),
    "compare": Command(
        "tools.commands.on_drives.compare_logs", "compare two logs field by field, frame by frame"
    ),
    "regress": Command(
        "tools.commands.on_drives.regress_drives", "compare model outputs on drives with references"
    ),
    "history": Command(
        "tools.commands.on_drives.history", "plot metrics over commits, and judge the latest"
    ),
    "export": Command(
        "tools.commands.on_drives.export", "convert a log to MCAP, overlay video or rerun"
    ),
    "run": Command("tools.commands.run", "run the daemon on live cameras and a live bus"),
    "config": Command(
        "tools.commands.config", "show the daemon's settings and where they come from"
    ),
    "status": Command("tools.commands.status", "show the health of the daemons on a bus"),
    "params": Command("tools.commands.params", "show the stack's parameters that the daemon reads"),
    "models": Command("tools.commands.store_models", "add, check and select the daemon's models"),
    "install-unit": Command(
        "tools.commands.install_unit", "write systemd units and a configuration"
    ),
    "keys": Command("tools.commands.keys", "create the keys of a bus between machines"),
    "subscribe": Command("tools.commands.subscribe", "print the messages that arrive on the bus"),
    "bridge": Command("tools.commands.bridge", "forward services from one bus to another"),
    "view": Command(
        "tools.commands.on_drives.view", "watch a daemon, or look through a log, on a local page"
    ),
    "play": Command("tools.commands.on_drives.play", "play a recorded drive to a running daemon"),
    "drive": Command(
        "tools.commands.on_drives.drive", "drive a simulated car with a model (closed loop)"
    ),
    "demo": Command("tools.commands.on_drives.demo", "run an end-to-end demo"),
}

# Top-level module of an optional package -> the extra of ``modeld`` that installs it.
EXTRA_OF_MODULE = {
    "onnx": "compile",
    "ml_dtypes": "compile",
    "av": "replay",
    "backports": "replay",
    "tqdm": "replay",
    "distributed": "cluster",
    "dask": "cluster",
    "mcap": "replay",
    "rerun": "rerun",
    "aiohttp": "view",
    "pocl": "pocl",
    "torch": "train",
    "ruptures": "history",
    "onnxruntime": "dev",
}


class _Terminated(BaseException):
    """Raised on SIGTERM, so context managers remove their temporary files."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that formats errors like all other errors of ``modeld``."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"modeld: error: {message}; see {self.prog} --help\n")

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Exit with an error that names unrecognized arguments and the most similar options."""
        near = [nearest(word.partition("=")[0], self._option_string_actions) for word in words]
        self.error(f"unrecognized arguments: {' '.join(words)}{''.join(near)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = nearest(value, map(str, action.choices or ()))
            error.message = f"unknown {value!r}{near}" if near else error.message
            raise

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own method ignores errors in writing the help text.
        (file or sys.stderr).write(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one ``modeld`` command; return its exit code, see ``EXIT_CODES``."""
    if argv is not None:
        return _run_command(argv)
    _leave_closed_directory()
    # SIGINT is ignored once the command has ended. Interrupting Python's own shutdown would print a
    # traceback and end the process by the signal, although all work is done.
    code: int = ExitCode.INTERRUPTED
    try:
        try:
            code = _run_command(sys.argv[1:])
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _run_command(argv: Sequence[str]) -> int:
    _open_standard_streams()
    arguments = list(argv)
    # The parser also reads -v and -q. Here they only decide how errors are shown.
    show_traceback = _count_verbosity(arguments) >= 2
    previous_handler = _install_sigterm_handler()
    try:
        try:
            code = _dispatch(arguments)
        except SystemExit as stop:  # argparse: --help, --version and usage errors
            code = stop.code if isinstance(stop.code, int) else 0
        # Flush here: at interpreter exit, a closed pipe would print a traceback.
        sys.stdout.flush()
    except BrokenPipeError:
        return _silence_broken_pipe()
    except KeyboardInterrupt:
        _print_error("interrupted")
        return ExitCode.INTERRUPTED
    except _Terminated:
        _print_error("terminated")
        return ExitCode.TERMINATED
    except Exception as error:  # noqa: BLE001 - the outermost frame: nothing may reach the user raw
        return _report(error, show_traceback=show_traceback)
    finally:
        if previous_handler is not None:
            signal.signal(signal.SIGTERM, previous_handler)
    return code


def _leave_closed_directory() -> None:
    """Change to the root directory if the user has no access to the current one.

    This happens after `sudo -u`. Relative file names do not work then, and Cap'n Proto, which opens
    the current directory, would end the process.
    """
    try:
        os.close(os.open(os.getcwd(), os.O_PATH | os.O_DIRECTORY))  # noqa: PTH109 -- as Cap'n Proto
    except OSError:
        os.chdir("/")


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed at the start.

    Otherwise the next opened file gets its number, and error messages of a C library could be
    written into an artifact.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # This opens the lowest free number, which is `number`: all lower ones are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A file name can contain characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")


def _dispatch(arguments: list[str]) -> int:
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    run: Callable[[argparse.Namespace], int] | None = None
    parser, subparsers = _build_parser()
    for command_name, command in COMMANDS.items():
        chosen = command_name == name
        module = importlib.import_module(command.module) if chosen else None
        documented = (module.__doc__ if module else None) or command.summary
        description, examples = split_docstring(documented)
        sub = subparsers.add_parser(
            command_name,
            help=command.summary,
            description=description,
            epilog=epilog(examples, EXIT_CODES),
            formatter_class=HelpFormatter,
        )
        # SUPPRESS: a sub-command's default must not overwrite an option given before its name.
        _add_common_arguments(sub, default=argparse.SUPPRESS)
        if module is not None:
            module.add_arguments(sub)
            run = cast("Callable[[argparse.Namespace], int]", module.run)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:  # show the command's own usage, not the list of commands
        asked = parser if name not in COMMANDS else subparsers.choices[name]
        asked.refuse_unknown(unknown)
    if run is None:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    # The parser counts options before and after the command separately.
    args.verbosity = _count_verbosity(arguments)
    _configure_logging(args.verbosity)
    # Before any work, check that no output overwrites an input.
    from tools.command_files import check_files

    check_files(args)
    return run(args)


def _build_parser() -> tuple[_Parser, argparse._SubParsersAction[_Parser]]:
    parser = _Parser(
        prog="modeld",
        description="On-device inference for driving models: ONNX to OpenCL to modelV2 at 20 Hz.",
        epilog=epilog("modeld replay drive.mp4 --model driving.pkl -o out.rlog.zst", EXIT_CODES),
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="print the version and exit"
    )
    _add_common_arguments(parser, default=None)
    return parser, parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")


def _add_common_arguments(parser: argparse.ArgumentParser, default: str | None) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=default or 0,
        help="more messages on stderr; twice: debug, and tracebacks",
    )
    group.add_argument(
        "-q", "--quiet", action="count", default=default or 0, help="errors only on stderr"
    )
    group.add_argument(
        "--json",
        action="store_true",
        default=default or False,
        help="one JSON object on stdout, messages on stderr",
    )


class _ShowVersion(argparse.Action):
    """Prints the version. It is looked up only on request, because that import is slow."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - argparse fixes the signature
        values: object,  # noqa: ARG002 - argparse fixes the signature
        option_string: str | None = None,  # noqa: ARG002 - argparse fixes the signature
    ) -> NoReturn:
        from importlib import metadata

        try:
            version = metadata.version("modeld")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print(f"modeld {version}")
        parser.exit()


def _count_verbosity(arguments: Sequence[str]) -> int:
    """Return the number of -v minus the number of -q; ``-vv`` counts twice."""
    count = 0
    for argument in arguments:
        if argument in ("--verbose", "--quiet"):
            count += 1 if argument == "--verbose" else -1
        elif len(argument) > 1 and argument[0] == "-" and set(argument[1:]) <= {"v", "q"}:
            count += argument.count("v") - argument.count("q")
    return count


def _configure_logging(verbosity: int) -> None:
    if verbosity < 0:
        level = logging.ERROR
    else:
        level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(levelname).1s %(name)s: %(message)s", force=True
    )


def _install_sigterm_handler() -> Callable[[int, FrameType | None], object] | int | None:
    """Make SIGTERM raise ``_Terminated``; return the previous handler, None if not main thread."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    try:
        return signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread: the embedding program owns the signals
        return None


def _report(error: Exception, *, show_traceback: bool) -> int:
    if show_traceback:
        traceback.print_exc(file=sys.stderr)
    if isinstance(error, ModuleNotFoundError):
        return _report_missing_module(error)
    exit_code = getattr(error, "exit_code", None)
    if isinstance(exit_code, int):
        _print_error(str(error))
        return exit_code
    if isinstance(error, OSError):
        # For these errors without a file name, the standard output cannot be written.
        stream = "output: " if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EIO) else ""
        where = f"{error.filename}: " if error.filename else stream
        _print_error(f"{where}{error.strerror or error}")
        return ExitCode.FAILED
    if isinstance(error, MemoryError):
        _print_error(f"out of memory: {error}; use a smaller model or a larger machine")
        return ExitCode.FAILED
    hint = "" if show_traceback else "; run again with -vv for the traceback"
    _print_error(f"unexpected {type(error).__name__}: {error}{hint}")
    return ExitCode.FAILED


def _report_missing_module(error: ModuleNotFoundError) -> int:
    name = error.name or str(error)
    extra = EXTRA_OF_MODULE.get(name.partition(".")[0])
    if extra:
        advice = f"install it with: pip install 'modeld[{extra}]'"
    elif name.startswith("tools.simulator"):
        advice = "this installation leaves the simulator out; use a whole one"
    else:
        advice = "is the installation complete?"
    _print_error(f"this command needs the module {name!r}, which is not installed; {advice}")
    return ExitCode.MACHINE


def _silence_broken_pipe() -> int:
    # The interpreter flushes stdout at exit, and would print an error about the closed pipe.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, cast("TextIO", sys.stdout).fileno())
    os.close(devnull)
    return ExitCode.CLOSED_PIPE


def _print_error(message: str) -> None:
    one_line = " ".join(message.split())
    # File names can contain control characters, which a terminal would interpret.
    one_line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line)
    print(f"modeld: error: {one_line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
