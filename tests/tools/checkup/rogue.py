"""Parts of a checkup that go wrong: started as `tools.checkup.parts` is."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    part = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["part"]
    if part == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(os.environ["ROGUE_CHILD"]).write_text(str(child.pid), encoding="utf-8")
        time.sleep(60)
    if part == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if part == "raises":
        sys.stderr.write("Traceback ...\nRuntimeError: no such thing\n")
        sys.exit(1)
    # "silent" ends as if all were well, and has written nothing.


if __name__ == "__main__":
    main()
