"""A limit of memory for the daemon and a neighbour: of a cgroup, or of the neighbour by itself."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


def _usage(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


def _make(limit: int) -> Path | None:
    """Make a group with a limit; None where that is not allowed."""
    name = f"modeld_faults_{os.getpid()}"
    for parent, knob in ((V1, "memory.limit_in_bytes"), (V2, "memory.max")):
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / knob).write_text(str(limit), encoding="utf-8")
        except OSError:
            group.rmdir()
            continue
        return group
    return None


@contextmanager
def memory_group(pid: int, spare_mib: int) -> Iterator[str]:
    """Put a process into a group that has little more memory than it holds; yield what its
    neighbour does in a shell to join it.

    Without the right to make groups, as in most containers, the neighbour alone has a limit.
    """
    limit = _usage(pid) + (spare_mib << 20)
    group = _make(limit)
    if group is None:
        yield f"ulimit -v {limit >> 10}"
        return
    before = _group_of(pid, group.parent)
    try:
        (group / "cgroup.procs").write_text(str(pid), encoding="utf-8")
        yield f"echo $$ > {group}/cgroup.procs; echo 1000 > /proc/self/oom_score_adj"
    finally:
        (before / "cgroup.procs").write_text(str(pid), encoding="utf-8")
        group.rmdir()


def _group_of(pid: int, parent: Path) -> Path:
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if (parent == V1 and "memory" in controllers.split(",")) or (
            parent == V2 and not controllers
        ):
            return parent / path.lstrip("/")
    return parent
