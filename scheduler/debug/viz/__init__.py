"""One self-contained HTML page on a compilation: passes, kernels, memory, source."""

from scheduler.debug.viz.page import PageTable, page, write_page

__all__ = ["PageTable", "page", "write_page"]
