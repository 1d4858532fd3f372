"""What an emulated processor cannot do: each proved to be so, and the tests that need it."""

from collections.abc import Iterator, Sequence
from typing import Final

from tests.debian.place import Place

# A program that prints "kept" where a promise is, and the tests that can pass only then.
PROMISES: Final = {
    "keeps no limits of memory": (
        """
import mmap, resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    mmap.mmap(-1, 2 << 30)
except (MemoryError, OSError):
    print("kept")
""",
        ("tests/runtime/test_device.py::test_too_little_memory_for_a_driver_is_said",),
    ),
    "does not tell a receiver that descriptors were cut off": (
        """
import array, socket
left, right = socket.socketpair()
left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 3))])
flags = right.recvmsg(1, socket.CMSG_SPACE(4))[2]
print("kept" if flags & socket.MSG_CTRUNC else flags)
""",
        (
            (
                "tests/cereal/test_visionipc_faults.py::test_an_answer_that_cannot_be_is_one_line"
                "[data9-130-expected at most 17272 bytes and 127 descriptors]"
            ),
        ),
    ),
    "shows its own command as that of a process": (
        """
import pathlib, subprocess, sys
code = "import sys; print(flush=True); sys.stdin.read()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
    child.stdout.readline()
    command = pathlib.Path(f"/proc/{child.pid}/cmdline").read_bytes()
    print("kept" if command.startswith(sys.executable.encode()) else command)
    child.stdin.close()
""",
        (
            "tests/cereal/test_msgq.py::test_another_process_is_named_and_its_end_frees_the_ring",
            "tests/cereal/test_transport.py::test_what_is_taken_is_named_with_the_process_that_holds_it",
        ),
    ),
}


def left_out(place: Place, within: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield reasons that hold in the place, with the tests within files that they leave out."""
    if place.emulator is None:
        return
    for what, (program, tests) in PROMISES.items():
        concerned = [test for test in tests if test.startswith(tuple(within))]
        if concerned and place.python("-c", program).stdout.strip() != "kept":
            yield f"{place.emulator.name} {what}", concerned
