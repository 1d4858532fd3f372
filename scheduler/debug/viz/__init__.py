"""One self-contained HTML page on a compilation: passes, kernels, memory, source."""

from scheduler.debug.viz.page import page, write_page

__all__ = ["page", "write_page"]
