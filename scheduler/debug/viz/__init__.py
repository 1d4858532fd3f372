"""A self-contained HTML page about one compilation: passes, kernels, memory and sources."""

from scheduler.debug.viz.drawings import LaunchTimes
from scheduler.debug.viz.page import PageTable, page, write_page

__all__ = ["LaunchTimes", "PageTable", "page", "write_page"]
