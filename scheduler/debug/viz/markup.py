"""Text for people and for HTML, shared by the parts of the page."""

from __future__ import annotations

from html import escape
from typing import Final

from runtime.quantities import count_text, flops_text, size_text

__all__ = ["ROW_LIMIT", "count_text", "escape", "flops_text", "size_text"]

# Beyond this many kernels the drawings start folded.
ROW_LIMIT: Final = 400
