"""A mirror of Debian in a folder, of packages with one file each, and apt's configuration."""

import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SUITE, ARCHITECTURE = "trixie", "arm64"


@dataclass(frozen=True)
class Package:
    """A package; its one file is named like it and holds its version."""

    name: str
    version: str
    depends: str = ""
    payload_bytes: int = 0


def make_mirror(folder: Path, *packages: Package) -> Mapping[str, str]:
    """Write a mirror and return the environment in which apt's only source is its other suite."""
    index = "".join(_add(folder / "mirror", package) for package in packages)
    of_suite = folder / "mirror/dists" / SUITE
    lists = of_suite / f"main/binary-{ARCHITECTURE}/Packages"
    lists.parent.mkdir(parents=True)
    lists.write_text(index)
    digest = hashlib.sha256(index.encode()).hexdigest()
    (of_suite / "Release").write_text(
        f"Suite: {SUITE}\nCodename: {SUITE}\nArchitectures: {ARCHITECTURE}\nComponents: main\n"
        f"SHA256:\n {digest} {len(index)} main/binary-{ARCHITECTURE}/Packages\n"
    )
    return apt_environment(folder, f"deb [trusted=yes] file:{folder}/mirror bookworm main\n")


def apt_environment(folder: Path, sources: str) -> Mapping[str, str]:
    """Return the environment in which apt's configuration names these sources, and no others."""
    (folder / "sources.list").write_text(sources)
    (folder / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "-";\n'
    )
    return {"APT_CONFIG": str(folder / "apt.conf")}


def _add(mirror: Path, package: Package) -> str:
    """Build a package into a mirror; return its entry in the list."""
    tree = mirror / "build" / package.name
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / f"usr/lib/{package.name}").mkdir(parents=True)
    (tree / f"usr/lib/{package.name}/version").write_text(package.version)
    if package.payload_bytes:
        # Digests of a counter, which no compression makes smaller.
        counted = range(package.payload_bytes // 32)
        payload = b"".join(hashlib.sha256(b"%d" % n).digest() for n in counted)
        (tree / "usr/lib/payload").write_bytes(payload)
    control = (
        f"Package: {package.name}\nVersion: {package.version}\nArchitecture: {ARCHITECTURE}\n"
        "Maintainer: nobody <nobody@localhost>\nDescription: for a test\n"
    )
    control += f"Depends: {package.depends}\n" if package.depends else ""
    (tree / "DEBIAN/control").write_text(control)
    built = mirror / f"pool/{package.name}.deb"
    built.parent.mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "-Znone", "-b", tree, built], check=True, capture_output=True)  # noqa: S607
    content = built.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return f"{control}Filename: pool/{built.name}\nSize: {len(content)}\nSHA256: {digest}\n\n"
