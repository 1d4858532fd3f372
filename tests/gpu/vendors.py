"""Name all OpenCL drivers in a directory, and print those that no file of the system names."""

import sys
from pathlib import Path

from tools.service.opencl_drivers import vendors_with

if __name__ == "__main__":
    print(*vendors_with(Path(sys.argv[1])))
