"""Unpacks Debian packages of any suite and architecture into a folder, without root.

apt resolves and downloads packages in private directories, so the machine's packages, lists and
locks are not touched; it checks signatures and digests as usual. ``dpkg-deb`` unpacks, and no
script of a package runs. A folder is made in a temporary place and renamed, so it is complete or
absent. Mirrors come from apt's configuration, including ``APT_CONFIG``, in one-line lists and
deb822 files.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.errors import (
    PackageDiskError,
    PackageDownloadError,
    PackageNotOfferedError,
    PackagesError,
)
from tools.lib.json_output import json_text

# Names of Debian's suites. Derivatives have other names, and their mirrors have no Debian suite.
_SUITES: Final = frozenset(
    (
        *("oldoldstable", "oldstable", "stable", "testing", "unstable", "sid"),
        *("buster", "bullseye", "bookworm", "trixie", "forky", "duke"),
    )
)


@dataclass(frozen=True, slots=True)
class AptSource:
    """A source of packages."""

    uri: str  # address of the mirror
    signed_by: str = ""  # the field's value as in the file; "" for apt's own keys
    is_trusted: bool = False  # whether no signature is required

    def stanza(self, suite: str, architecture: str) -> str:
        """Return the deb822 text that names this mirror for one suite and architecture."""
        # apt reads packages of file: in place and copies nothing, so there would be nothing to
        # unpack.
        uri = re.sub(r"^file:", "copy:", self.uri)
        lines = ["Types: deb", f"URIs: {uri}", f"Suites: {suite}", "Components: main"]
        lines += [f"Architectures: {architecture}", "Targets: Packages"]
        lines += [f"Signed-By:{self.signed_by}"] if self.signed_by else []
        lines += ["Trusted: yes"] if self.is_trusted else []
        return "\n".join(lines) + "\n\n"


def debian_sources() -> list[AptSource]:
    """Return the Debian mirrors in apt's configuration, each once, in the order of the files.

    Sources of updates and of security fixes are left out, because they are other archives.

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
        # A value continues on lines that begin with a blank; it may be an embedded key.
        pairs = re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", stanza, flags=re.MULTILINE)
        fields = {name.lower(): value for name, value in pairs}
        words = {name: value.split() for name, value in fields.items()}
        if words.get("enabled") == ["no"] or "deb" not in words.get("types", ()):
            continue
        if _SUITES.isdisjoint(words.get("suites", ())) or "main" not in words.get("components", ()):
            continue
        for uri in words.get("uris", ()):
            yield AptSource(uri, fields.get("signed-by", ""), words.get("trusted") == ["yes"])


# Called with (unit counted, number done, total).
Progress = Callable[[str, int, int], None]

# File in the folder that records the requested packages and the versions installed.
LIST_FILE: Final = ".packages.json"

# apt reports a full disk as text only.
_DISK_FULL: Final = re.compile(
    r"No space left on device|Disk quota exceeded|enough free space|Wrote only \d+ of"
)

# Hooks in the machine's configuration would run at the end, and fail without root. Lists are stored
# uncompressed, even if an image for containers sets otherwise, since three commands read them.
_CONFIGURATION: Final = """\
#clear APT::Update;
#clear DPkg;
#clear APT::Architectures;
#clear APT::Default-Release;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::GzipIndexes "false";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::Cache "{work}/cache";
Dir::Cache::pkgcache "packages.bin";
Dir::Cache::srcpkgcache "sources.bin";
Dir::Etc::sourcelist "{work}/debian.sources";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "-";
Dir::State "{work}/state";
Dir::State::status "{work}/state/status";
"""


def fetch_root(
    packages: Sequence[str],
    *,
    architecture: str,
    suite: str,
    directory: Path,
    progress: Progress,
) -> Path:
    """Return a folder with packages and all their dependencies, laid out as a root directory.

    A folder made earlier for the same packages, suite and architecture is reused without network
    access. `directory` must not contain anything else, because it is replaced.

    Packages are "name" or "name=version"; others have the newest version of the suite, such as
    "trixie". `progress` is called while packages are unpacked.

    Raises:
        PackagesError: this machine has no apt, or no Debian source.
        PackageNotOfferedError: the suite has no such package, or another version of it.
        PackageDownloadError: lists or packages could not be downloaded completely.
        PackageDiskError: the disk is full. In all these cases, `directory` is unchanged.
    """
    wanted = {"packages": sorted(packages), "architecture": architecture, "suite": suite}
    if _listed(directory).get("wanted") == wanted:
        return directory
    for tool in ("apt-get", "apt-cache", "apt-config", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise PackagesError(
                f"{tool}: expected it in PATH, found none; packages of Debian are fetched with apt "
                "and dpkg, so install these, or use a machine with Debian or a derivative"
            )
    try:
        with _work_folder(directory) as work:
            apt = _Apt(work, architecture, suite)
            apt.update()
            apt.check_offered(packages)
            versions = apt.download(packages)
            root = _unpack(sorted((work / "cache/archives").glob("*.deb")), work, progress)
            listed = json_text({"wanted": wanted, "versions": versions}, indent=1)
            (root / LIST_FILE).write_text(f"{listed}\n", encoding="utf-8")
            _replace(directory, root)
    except OSError as error:
        raise PackageDiskError(
            f"{directory}: expected to write packages of {suite} for {architecture}, found: "
            f"{error.strerror or error}; nothing was left behind"
        ) from error
    return directory


def package_versions(directory: Path) -> dict[str, str]:
    """Return the version of each package in a folder of `fetch_root`, by name."""
    versions: dict[str, str] = _listed(directory).get("versions", {})
    return versions


def _listed(directory: Path) -> dict[str, Any]:
    try:
        listed = json.loads((directory / LIST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return listed if isinstance(listed, dict) else {}


class _Apt:
    """Runs apt for one suite and architecture, with private directories in `work`."""

    def __init__(self, work: Path, architecture: str, suite: str) -> None:
        self._suite = f"{suite} for {architecture}"
        self._configuration = work / "apt.conf"
        sources = debian_sources()
        if not sources:
            raise PackagesError(
                "apt's sources: expected one of Debian, found none; add a file to "
                "/etc/apt/sources.list.d that names a mirror of Debian"
            )
        self._mirrors = ", ".join(source.uri for source in sources)
        for folder in ("cache/archives/partial", "state/lists/partial"):
            (work / folder).mkdir(parents=True)
        (work / "state/status").touch()
        text = "".join(source.stanza(suite, architecture) for source in sources)
        (work / "debian.sources").write_text(text, encoding="utf-8")
        text = _CONFIGURATION.format(architecture=architecture, work=work)
        self._configuration.write_text(text, encoding="utf-8")

    def update(self) -> None:
        """Download the lists of packages."""
        self._run("apt-get", "update", doing="the lists of packages")

    def check_offered(self, packages: Sequence[str]) -> None:
        """Raise PackageNotOfferedError if a package is not available in the requested version."""
        names = [package.partition("=")[0] for package in packages]
        table = self._run("apt-cache", "madison", *names, doing="the versions of packages")
        offered: dict[str, list[str]] = {name: [] for name in names}
        for line in table.splitlines():
            name, version, _ = (cell.strip() for cell in line.split("|"))
            offered.setdefault(name, []).append(version)
        lacking = []
        for package in packages:
            name, _, version = package.partition("=")
            if not offered[name] or (version and version not in offered[name]):
                lacking.append(f"expected {package}, found {', '.join(offered[name]) or 'none'}")
        if lacking:
            raise PackageNotOfferedError(
                f"{self._suite} at {self._mirrors}: {'; '.join(lacking)}; use a mirror that has it"
            )

    def download(self, packages: Sequence[str]) -> dict[str, str]:
        """Download packages and their dependencies; return the versions by name."""
        plan = self._run("apt-get", "install", "--simulate", *packages, doing="their dependencies")
        versions = dict(re.findall(r"^Inst (\S+) \((\S+) ", plan, flags=re.MULTILINE))
        doing = f"{len(versions)} packages"
        self._run("apt-get", "install", "--download-only", "--yes", *packages, doing=doing)
        return versions

    def _run(self, *command: str, doing: str) -> str:
        done = subprocess.run(  # noqa: S603 - apt, with names of packages as arguments
            [command[0], "-c", str(self._configuration), "-q", *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
        )
        if done.returncode == 0:
            return done.stdout
        problem = _first_problem(done.stderr) or f"{command[0]} ended with {done.returncode}"
        if _DISK_FULL.search(done.stderr):
            raise PackageDiskError(f"{self._suite}: expected room for {doing}, found: {problem}")
        raise PackageDownloadError(
            f"{self._suite}: expected {doing} from {self._mirrors}, found: {problem}; try again, "
            "or see `apt-get update`"
        )


def _first_problem(text: str) -> str:
    """Return the first line that apt marks as an error, else the first warning."""
    for mark in ("E: ", "W: ", "dpkg-deb: "):
        for line in text.splitlines():
            if line.startswith(mark):
                return line.removeprefix(mark).strip()
    return ""


def _unpack(archives: Sequence[Path], work: Path, progress: Progress) -> Path:
    """Unpack packages into a folder of `work` and delete them; return the folder."""
    root = work / "root"
    (root / "usr").mkdir(parents=True)
    # These are links in current Debian, and programs look for their loader in /lib.
    for name in ("bin", "lib", "sbin"):
        (root / "usr" / name).mkdir()
        (root / name).symlink_to(f"usr/{name}")

    def unpack(archive: Path) -> None:
        done = subprocess.run(  # noqa: S603 - a fixed command on a file that apt has checked
            ["dpkg-deb", "-x", str(archive), str(root)],  # noqa: S607 - found in PATH before
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        if done.returncode != 0:
            problem = done.stderr.strip().replace("\n", "; ")
            kind = PackageDiskError if _DISK_FULL.search(problem) else PackageDownloadError
            raise kind(f"{archive.name}: expected to unpack it, found: {problem}")
        archive.unlink()

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        for number, _ in enumerate(threads.map(unpack, archives), 1):
            progress("packages unpacked", number, len(archives))
    return root


@contextmanager
def _work_folder(directory: Path) -> Iterator[Path]:
    """Yield an empty folder next to another one, and delete it afterwards.

    A lock admits one process at a time, which first deletes leftovers of killed ones.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    mark = f".{directory.name}-unpacking-"
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in directory.parent.glob(f"{mark}*"):
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=mark, dir=directory.parent.resolve()))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _replace(directory: Path, root: Path) -> None:
    """Replace a folder by another one; the old one is moved next to `root`, to be deleted."""
    if directory.exists():
        directory.rename(root.parent / "replaced")
    root.rename(directory)
