"""The ``modeld`` command as a process and as a function."""

import ast
import importlib
import inspect
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.other_user import STRANGER, needs_root, process_of
from tests.tools.conftest import Modeld
from tools import cli
from tools.errors import ExitCode
from tools.lib.options import epilog, split_docstring


class _ModelError(Exception):
    exit_code = 4


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("probe_command")
    module.__doc__ = "A probe.\n\nExample:\n  modeld probe"
    module.__dict__["add_arguments"] = lambda parser: parser.add_argument("--value", type=int)
    module.__dict__["run"] = lambda _args: 0
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probe_command", "probe"))
    return module


def _raising(error: BaseException) -> Any:
    def run(_args: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (_ModelError("model.pkl: expected a,\nfound b"), 4, "model.pkl: expected a, found b"),
        (ValueError("odd"), 1, "unexpected ValueError: odd; run again with -vv"),
        (FileNotFoundError(2, "No such file", "x.pkl"), 1, "x.pkl: No such file"),
        (OSError(28, "No space left on device"), 1, "error: output: No space left on device"),
        (ModuleNotFoundError("no", name="onnx"), 3, "pip install 'modeld[compile]'"),
        (ModuleNotFoundError("no", name="backports.zstd"), 3, "pip install 'modeld[replay]'"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (_ModelError("a\x1b[31m\udcff.pkl: bad"), 4, "error: a\\x1b[31m\\udcff.pkl: bad"),
        (MemoryError("64 GiB"), 1, "error: out of memory: 64 GiB; use a smaller model"),
    ],
)
def test_error_gives_its_exit_code_and_one_line(
    probe: ModuleType, modeld: Modeld, error: BaseException, code: int, text: str
) -> None:
    probe.__dict__["run"] = _raising(error)
    assert modeld.refused(code, text, "probe").out == ""


@pytest.mark.parametrize("flags", [["-vv"], ["-v", "--verbose"]])
def test_unexpected_error_shows_traceback_only_when_asked(
    probe: ModuleType, modeld: Modeld, flags: list[str]
) -> None:
    probe.__dict__["run"] = _raising(ValueError("odd"))
    assert "Traceback" in modeld(1, "probe", *flags).err


def test_sigterm_unwinds_the_command(probe: ModuleType) -> None:
    unwound = []

    def run(_args: Any) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            unwound.append(True)
        return 0

    probe.__dict__["run"] = run
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["probe"]) == 143
    assert unwound == [True]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "level", "wants_json"),
    [
        (["probe"], logging.WARNING, False),
        (["-v", "probe", "--json"], logging.INFO, True),
        (["--json", "probe", "-vv"], logging.DEBUG, True),
        (["probe", "-q"], logging.ERROR, False),
        (["-v", "probe", "-v"], logging.DEBUG, False),
    ],
)
def test_common_options_count_before_and_after_the_command(
    probe: ModuleType, arguments: list[str], level: int, wants_json: bool
) -> None:
    seen: list[Any] = []

    def run(args: Any) -> int:
        seen.append(args)
        return 0

    probe.__dict__["run"] = run
    assert cli.main(arguments) == 0
    assert logging.root.level == level
    assert seen[0].json is wants_json


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["probe", "--value", "x"]])
def test_usage_error_exits_2(modeld: Modeld, arguments: list[str]) -> None:
    said = modeld(2, *arguments)
    assert said.out == ""
    assert "usage: modeld" in said.err


def _run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-c", code, **variables)


def test_help_imports_nothing_heavy() -> None:
    done = _run_python(
        "import sys\n"
        "from tools.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'numpy', 'capnp', 'pyopencl', 'onnx', 'av', 'zmq'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert done.returncode == 0, done.stderr


def test_daemon_command_loads_neither_onnx_nor_the_scheduler() -> None:
    done = _run_python(
        "import sys\n"
        "from tools.cli import main\n"
        "assert main(['run', '--model', 'missing.pkl', '--demo']) == 4\n"
        "found = {'onnx', 'scheduler', 'av'} & set(sys.modules)\n"
        "assert not found, found"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # It loads all commands.
def test_without_the_simulator_only_its_own_commands_are_missing() -> None:
    code = """
import sys
sys.modules["tools.simulator"] = None
from tools.cli import COMMANDS, main
print({name: int(main([name, "--help"])) for name in COMMANDS})
"""
    done = _run_python(code)
    codes = ast.literal_eval(done.stdout.splitlines()[-1])
    assert {name for name, code in codes.items() if code} == {
        "demo",
        "drive",
        "make-drive",
        "train",
    }
    assert {codes["drive"], codes["train"]} == {ExitCode.MACHINE}
    assert done.stderr.count("leaves the simulator out; use a whole one") == 4


def test_closed_pipe_ends_without_a_traceback() -> None:
    code = "import sys; from tools.cli import main; sys.exit(main(['--help']))"
    # Unbuffered, argparse itself would meet the closed pipe, and ignore it.
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing_but_what_is_shown(closed: str) -> None:
    code = (
        "import os, sys\n"
        "from tools.cli import main\n"
        "code = main(['--version'])\n"
        "print('to', 'stdout'); print('to', 'stderr', file=sys.stderr); sys.stdin.read()\n"
        "sys.exit(code if os.open('/dev/null', os.O_RDONLY) > 2 else 1)"
    )
    done = _run("/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code)
    assert done.returncode == 0, done.stderr
    assert ("to stdout" in done.stdout) is (">&- " not in f"{closed} ".replace("2>&-", ""))


@needs_root
def test_a_directory_that_the_user_may_not_enter_is_left(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    imports = f"import tools.cli\nos.chdir({str(tmp_path)!r})\n"
    script = "sys.argv[1:] = ['--help']\ntools.cli.main()\nprint(os.getcwd())"
    with process_of(script, user=STRANGER, imports=imports) as child:
        assert child.communicate()[0].splitlines()[-1] == "/"


def test_name_that_the_terminal_cannot_show_is_printed_escaped() -> None:
    code = "from tools.cli import main; main(['--version']); print('drive\\udcff.mp4')"
    done = _run_python(code, PYTHONIOENCODING="utf-8:strict")
    assert done.stdout.splitlines()[-1] == "drive\\udcff.mp4"


# A process like the installed command, in which a signal comes at one moment.
INTERRUPTED = """
import atexit, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from tools import cli
from tools.errors import ExitCode
interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["modeld", "--version"]
{before}
code = cli.main()
{after}
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("", "interrupt()", 0),
        ("atexit.register(interrupt)", "", 0),
        ("class Last:\n  __del__ = interrupt\nlast = Last()", "", 0),
        # Just before the handlers of signals are installed, and just after they are gone.
        ("cli._open_standard_streams = interrupt", "", 130),
        ("run = cli._run_command\ncli._run_command = lambda a: (run(a), interrupt())[0]", "", 130),
    ],
    ids=["returned", "at exit", "shutdown", "starting", "returning"],
)
def test_a_signal_at_the_edges_is_no_traceback(before: str, after: str, code: int) -> None:
    done = _run_python(INTERRUPTED.format(before=before, after=after))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith("modeld ") == (before != "cli._open_standard_streams = interrupt")


@pytest.mark.parametrize("columns", [66, 100])
@pytest.mark.parametrize("command", [None, *cli.COMMANDS])
def test_help_is_plain_text_that_fits_with_an_example(
    command: str | None, columns: int, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = modeld(0, *filter(None, [command]), "--help").out
    assert not re.search(r"`|::(?!/)", text)
    assert re.search(rf"\nexamples?:\n  modeld {command or ''}", text)
    assert command is None or "exit codes:" in text
    # Lines that are shown to be typed are never broken; all others fit.
    assert all(
        len(line) <= columns for line in text.splitlines() if not line.startswith("  modeld ")
    ), text


def test_docstrings_become_text_and_examples() -> None:
    documented = """``modeld exec``: run an artifact once.

    Example::

        modeld exec a.pkl
        modeld exec b.pkl

    More about it.
    """
    text, examples = split_docstring(inspect.cleandoc(documented))
    assert text.split() == ["Run", "an", "artifact", "once.", "More", "about", "it."]
    assert examples == "modeld exec a.pkl\nmodeld exec b.pkl"
    assert (
        epilog(examples, "more")
        == f"examples:\n  {examples.replace(chr(10), chr(10) + '  ')}\n\nmore"
    )


def test_what_a_command_does_not_know_shows_that_commands_usage(modeld: Modeld) -> None:
    error = modeld(2, "devices", "extra", "--more").err
    assert error.split()[:3] == ["usage:", "modeld", "devices"]  # in any width
    assert "unrecognized arguments: extra --more; see modeld devices --help" in error


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["insepct", "x"], "unknown 'insepct' (did you mean inspect?)"),
        (["make-model", "d", "--model", "visoin"], "(did you mean vision?)"),
        (["--helpp"], "(did you mean --help?); see modeld --help"),
        (["devices", "--jsno"], "(did you mean --json?); see modeld devices --help"),
    ],
)
def test_what_is_not_known_is_answered_with_the_nearest(
    modeld: Modeld, words: list[str], near: str
) -> None:
    assert near in modeld(2, *words).err


@pytest.mark.parametrize("words", ["--help", "devices --help", "--version"])
def test_help_that_cannot_be_written_is_no_success(words: str) -> None:
    done = _run("sh", "-c", f"{sys.executable} -m tools.cli {words} >/dev/full")
    assert (done.returncode, done.stderr) == (1, "modeld: error: output: " + os.strerror(28) + "\n")


def test_one_table_has_all_exit_codes() -> None:
    documented = (Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8")
    assert "".join(f"| {code} | {code.meaning} |\n" for code in ExitCode) in documented
    assert all(f"  {code:<4} {code.meaning}\n" in cli.EXIT_CODES for code in ExitCode)
    modules = ("cereal", "runtime", "scheduler", "modeld", "tools")
    found = {
        error.exit_code
        for module in modules
        for error in vars(importlib.import_module(f"{module}.errors")).values()
        if isinstance(error, type) and hasattr(error, "exit_code")
    }
    assert found == {ExitCode.FAILED, ExitCode.USAGE, ExitCode.MACHINE, ExitCode.INPUT}
