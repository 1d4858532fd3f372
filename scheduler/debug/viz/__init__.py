"""One self-contained HTML page on a compilation: passes, kernels, memory, source."""

from scheduler.debug.viz.drawings import LaunchTimes
from scheduler.debug.viz.page import PageTable, page, write_page

__all__ = ["LaunchTimes", "PageTable", "page", "write_page"]
