"""Name all OpenCL drivers in a directory, and print those that no file of the system names."""

import sys
from pathlib import Path

from tools.checkup.opencl import write_vendors

if __name__ == "__main__":
    print(*write_vendors(Path(sys.argv[1])))
