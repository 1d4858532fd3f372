"""Hooks of mkdocs: documents outside `docs/` become pages, and links between all of them hold."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")  # not those with a scheme
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
# Where each document outside docs/ stands in the site. No page may be called README.md beside
# index.md: both would be index.html.
OUTSIDE = {
    "README.md": "modeld.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "measuring.md",
} | {
    f"benchmarks/results/{path.name}": f"results/{path.name}"
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))
}
SOURCE_OF = {page: source for source, page in OUTSIDE.items()}
# docs/site_messages.py makes their page.
MESSAGES = ("cereal/log.capnp", "cereal/health.capnp", "cereal/services.py")


def page_of(source: str) -> str | None:
    """Return the page of a file of the repository, or None where the site does not have it."""
    if source in OUTSIDE:
        return OUTSIDE[source]
    if source in MESSAGES:
        return "formats/messages.md"
    return source.removeprefix("docs/") if source.startswith("docs/") else None


def linked(text: str, page: str) -> str:
    """Return a document with links that hold in the site; a file that it lacks is only named."""
    here = posixpath.dirname(SOURCE_OF.get(page, f"docs/{page}"))

    def replaced(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        to = page_of(posixpath.normpath(posixpath.join(here, target)))
        if to is None:
            return label
        return f"[{label}]({os.path.relpath(to, posixpath.dirname(page) or '.')}{anchor})"

    parts = FENCE.split(text)
    return "".join(p if p.startswith("```") else LINK.sub(replaced, p) for p in parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside `docs/`."""
    for source, page in OUTSIDE.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links between files of the repository into links between pages."""
    return linked(markdown, page.file.src_uri)
