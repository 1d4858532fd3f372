"""What the compiler inside a driver writes to stderr reaches the log, and not the user."""

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.opencl.binding import cl
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import _without_counts, build

pytestmark = pytest.mark.opencl

WARNS = "__kernel void k%d(__global int* a) { int unused = 1.5; a[0] = unused; }"
FAILS = "__kernel void k(__global int* a) { a[0] = nonsense; }"


def program(source: str) -> cl.Program:
    return cl.Program(choose_device(None).context, source)


def test_warnings_are_for_those_who_debug(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # Another text each time: a driver that finds it in its cache says nothing.
    caplog.set_level(logging.WARNING)
    build(program(WARNS % os.getpid()))
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []
    caplog.set_level(logging.DEBUG)
    build(program(WARNS % (os.getpid() + 2**24)))
    assert "1 warning generated." not in capfd.readouterr().err.splitlines()
    if choose_device(None).info.is_pocl:
        assert any("changes value from 1.5 to 1" in message for message in caplog.messages)
        assert "compiler: 1 warning generated." in caplog.messages


def test_errors_come_as_an_exception_only(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(cl.Error, match="nonsense"):
        build(program(FAILS))
    assert capfd.readouterr() == ("", "")


def test_what_others_write_is_passed_on_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def write(number: int) -> None:
        os.write(2, f"thread {number}\n".encode())

    with _without_counts():
        os.write(2, b"LLVM ERROR: something\n2 warnings generated.\n")
        for number in range(3):
            thread = threading.Thread(target=write, args=(number,))
            thread.start()
            thread.join()
        os.write(2, b"1 warning and 12 errors generated.\nrest of a line")
    assert capfd.readouterr().err == (
        "LLVM ERROR: something\nthread 0\nthread 1\nthread 2\nrest of a line"
    )
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_a_process_without_stderr_builds_too() -> None:
    code = (
        "import os; os.close(2)\n"
        "from tests.runtime.test_compiler_output import WARNS, build, program\n"
        "build(program(WARNS % os.getpid()))\n"
        "print('built', flush=True)\n"
        # What PoCL does at the end of such a process is not our business.
        "os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"built\n")


def test_builds_of_several_threads_leave_the_stream(capfd: pytest.CaptureFixture[str]) -> None:
    # One context in one thread each; the lock makes their builds follow each other.
    programs = [program(WARNS % (os.getpid() + (n << 25))) for n in range(2, 6)]
    with ThreadPoolExecutor(len(programs)) as pool:
        list(pool.map(build, programs))
    os.write(2, b"end\n")
    assert capfd.readouterr().err == "end\n"
