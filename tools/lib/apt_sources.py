"""The apt sources of Debian that this machine has, to fetch packages of another suite from them.

Only files are read: one-line lists and deb822 files, wherever the configuration of apt (also that
of ``APT_CONFIG``) has them. No mirror is named here, so a machine behind a mirror of its own uses
it. Called by ``tools.lib.debian_packages``.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.errors import PackagesError

# Names of Debian's suites. A derivative has others, and its mirrors have no suite of Debian.
_SUITES: Final = frozenset(
    (
        *("oldoldstable", "oldstable", "stable", "testing", "unstable", "sid"),
        *("buster", "bullseye", "bookworm", "trixie", "forky", "duke"),
    )
)


@dataclass(frozen=True, slots=True)
class AptSource:
    """Where packages come from.

    Attributes:
        uri: of the mirror.
        signed_by: value of the field of that name, as it stands in the file; "" for apt's own keys.
        is_trusted: whether the machine's owner does without a signature.
    """

    uri: str
    signed_by: str = ""
    is_trusted: bool = False

    def stanza(self, suite: str, architecture: str) -> str:
        """Return the deb822 text that names this mirror for one suite and architecture."""
        # apt reads packages of file: where they lie, and would leave nothing to unpack.
        uri = re.sub(r"^file:", "copy:", self.uri)
        lines = ["Types: deb", f"URIs: {uri}", f"Suites: {suite}", "Components: main"]
        lines += [f"Architectures: {architecture}", "Targets: Packages"]
        lines += [f"Signed-By:{self.signed_by}"] if self.signed_by else []
        lines += ["Trusted: yes"] if self.is_trusted else []
        return "\n".join(lines) + "\n\n"


def debian_sources() -> list[AptSource]:
    """Return the mirrors of Debian in apt's configuration, each once, in the order of the files.

    Sources of updates and of security fixes are left out: they are other archives.

    Raises:
        PackagesError: apt's configuration cannot be read.
    """
    command = ["apt-config", "shell", "LIST", "Dir::Etc::sourcelist/f"]
    command += ["PARTS", "Dir::Etc::sourceparts/d"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    if done.returncode != 0:
        problem = " ".join(done.stderr.split()) or f"apt-config ended with {done.returncode}"
        raise PackagesError(f"apt's configuration: expected to read it, found: {problem}")
    paths = dict(word.split("=", 1) for word in shlex.split(done.stdout))
    parts = Path(paths.get("PARTS", "/nonexistent"))
    files = [Path(paths.get("LIST", "/nonexistent"))]
    files += sorted(file for file in parts.glob("*") if file.suffix in {".list", ".sources"})
    found: dict[str, AptSource] = {}
    for file in files:
        if not file.is_file():
            continue
        read = _deb822_sources if file.suffix == ".sources" else _line_sources
        for source in read(file.read_text(encoding="utf-8", errors="replace")):
            found.setdefault(source.uri.rstrip("/"), source)
    return list(found.values())


def _line_sources(text: str) -> Iterator[AptSource]:
    line = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(.*)")
    for match in filter(None, map(line.match, text.splitlines())):
        if match["suite"] in _SUITES and "main" in match[4].split():
            options = dict(o.split("=", 1) for o in (match["options"] or "").split() if "=" in o)
            signed_by = options.get("signed-by", "")
            yield AptSource(
                match["uri"], f" {signed_by}" if signed_by else "", options.get("trusted") == "yes"
            )


def _deb822_sources(text: str) -> Iterator[AptSource]:
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for stanza in re.split(r"\n\s*\n", text):
        # A value goes on in the lines that begin with a blank: a key may stand in its field.
        pairs = re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", stanza, flags=re.MULTILINE)
        fields = {name.lower(): value for name, value in pairs}
        words = {name: value.split() for name, value in fields.items()}
        if words.get("enabled") == ["no"] or "deb" not in words.get("types", ()):
            continue
        if _SUITES.isdisjoint(words.get("suites", ())) or "main" not in words.get("components", ()):
            continue
        for uri in words.get("uris", ()):
            yield AptSource(uri, fields.get("signed-by", ""), words.get("trusted") == ["yes"])
