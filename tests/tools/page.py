"""A page that a command wrote: what is in it, and whether its tags match."""

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """Reads a file: its text, the tags in it, and what they refer to."""

    VOID = frozenset({"meta", "input", "br", "hr"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.seen: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(self.text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "data")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
