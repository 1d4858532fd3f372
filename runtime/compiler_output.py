"""Building programs without the compiler's chatter; what it said goes to our log.

The clang inside a driver writes "1 warning generated." to the standard error stream of the process:
not what the warning was, and there is no option of OpenCL against it. So while a program is built
from source that stream is a file, and afterwards only what is not of this kind is passed on. The
warnings themselves are in the build log, which is logged for those who debug.

Builds happen while programs are loaded, never in a frame.
"""

import contextlib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Final

from runtime.opencl import cl, pocl_directory

logger = logging.getLogger(__name__)

STDERR: Final = 2
# CompilerInstance::ExecuteAction of clang: "1 warning and 2 errors generated."
_COUNTS: Final = re.compile(
    rb"^\d+ (?:warning|error)s?(?: and \d+ errors?)? generated(?: when compiling for \w+)?\.\n",
    re.MULTILINE,
)
# The stream belongs to the process: one build at a time may replace it.
_STREAM: Final = threading.Lock()


def build(program: cl.Program, options: str = "") -> cl.Program:
    """Build a program and return it.

    Args:
        program: made from source or from a binary.
        options: of the compiler.

    Raises:
        pyopencl.Error: it does not build; the text holds the build log.
    """
    pocl_directory.ensure()
    with _STREAM, warnings.catch_warnings(), _without_counts():
        # A log that is not empty is a warning to pyopencl; for us it is for those who debug.
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program.build(options)
    if logger.isEnabledFor(logging.DEBUG):
        built: Any = program  # pyopencl types neither of the two
        for device in built.get_info(cl.program_info.DEVICES):
            log = built.get_build_info(device, cl.program_build_info.LOG)
            if log:
                logger.debug("build log: %s", log.strip())
    return program


@contextlib.contextmanager
def _without_counts() -> Iterator[None]:
    """Keep what is written to the stream within; pass on what nobody else would say."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        stream = os.dup(STDERR)
    except OSError:  # it is closed
        yield
        return
    caught = os.memfd_create("compiler-output")
    os.dup2(caught, STDERR)
    try:
        yield
    finally:
        # Other threads may have written, too: all of it is in the file, in its order.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(stream, STDERR)
        os.close(stream)
        with os.fdopen(caught, "rb") as file:
            file.seek(0)
            text = file.read()
        for count in _COUNTS.findall(text):
            logger.debug("compiler: %s", count.decode().strip())
        _write_all(_COUNTS.sub(b"", text))


def _write_all(text: bytes) -> None:
    with contextlib.suppress(OSError):  # a stream that nobody reads any more
        while text:
            text = text[os.write(STDERR, text) :]
