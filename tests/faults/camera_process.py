"""Two cameras in a process of their own, until stdin closes; for faults that take a process."""

import sys

from tests.faults.cameras import Cameras


def main() -> int:
    cameras = Cameras(sys.argv[1])
    sys.stdin.read()
    cameras.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
