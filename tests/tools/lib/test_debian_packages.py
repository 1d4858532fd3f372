"""Packages of Debian from a mirror in a folder: resolved, unpacked, used again, refused."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.lib.debian_mirror import (
    ARCHITECTURE,
    SUITE,
    Package,
    apt_environment,
    make_mirror,
)
from tools.adreno.debian_packages import debian_sources, fetch_root, package_versions
from tools.errors import (
    PackageDiskError,
    PackageDownloadError,
    PackageNotOfferedError,
    PackagesError,
)

needs_apt = pytest.mark.skipif(
    shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None,
    reason="this machine has no apt",
)
PACKAGES = (
    Package("tool", "1.0-2+deb13u1", "libtool1 (>= 2)"),
    Package("libtool1", "2.1"),
    Package("other", "3"),
)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in make_mirror(tmp_path, *PACKAGES).items():
        monkeypatch.setenv(name, value)
    return tmp_path / "mirror"


def fetch(directory: Path, *packages: str) -> tuple[Path, list[tuple[str, int, int]]]:
    told: list[tuple[str, int, int]] = []
    root = fetch_root(
        packages,
        architecture=ARCHITECTURE,
        suite=SUITE,
        directory=directory,
        progress=lambda *step: told.append(step),
    )
    return root, told


@needs_apt
def test_a_root_has_what_packages_depend_on_and_is_used_again(mirror: Path, tmp_path: Path) -> None:
    root, told = fetch(tmp_path / "roots/arm64", "tool=1.0-2+deb13u1")
    assert root == tmp_path / "roots/arm64"
    assert told == [("packages unpacked", n, 2) for n in (1, 2)]
    assert package_versions(root) == {"tool": "1.0-2+deb13u1", "libtool1": "2.1"}
    assert {name: (root / name).readlink() for name in ("lib", "bin", "sbin")} == {
        name: Path(f"usr/{name}") for name in ("lib", "bin", "sbin")
    }
    assert (root / "lib/libtool1/version").read_text() == "2.1"

    # Without the mirror, the same packages are there still, and others leave them as they are.
    shutil.rmtree(mirror)
    assert fetch(root, "tool=1.0-2+deb13u1") == (root, [])
    with pytest.raises(PackageDownloadError, match="expected the lists of packages from file:"):
        fetch(root, "tool")
    assert (root / "lib/tool/version").read_text() == "1.0-2+deb13u1"
    assert sorted(p.name for p in root.parent.iterdir()) == [".arm64.lock", "arm64"]


@needs_apt
@pytest.mark.usefixtures("mirror")
def test_other_packages_replace_a_root_and_leftovers_go(tmp_path: Path) -> None:
    root, _ = fetch(tmp_path / "root", "tool")
    left = tmp_path / ".root-unpacking-killed"
    left.mkdir()
    fetch(root, "other")
    assert package_versions(root) == {"other": "3"}
    assert not (root / "lib/tool").exists()
    assert not left.exists()


@needs_apt
@pytest.mark.parametrize(
    ("packages", "damage", "kind", "message"),
    [
        (
            ["tool=9", "none", "other=3"],
            "",
            PackageNotOfferedError,
            r"arm64 at file:.*: expected tool=9, found 1.0-2\+deb13u1; expected none, found none; ",
        ),
        (["tool"], "short", PackageDownloadError, "expected 2 packages from file:.*, found: Fail"),
        (["tool"], "other bytes", PackageDownloadError, "libtool1.deb  Hash Sum mismatch; try"),
        (["tool"], "list", PackageDownloadError, "expected the lists of packages .*, found: "),
    ],
)
def test_nothing_is_written_where_packages_cannot_be_had(
    mirror: Path, tmp_path: Path, packages: list[str], damage: str, kind: type, message: str
) -> None:
    library = mirror / "pool/libtool1.deb"
    if damage == "short":
        library.write_bytes(library.read_bytes()[:-1])
    elif damage == "other bytes":
        library.write_bytes(library.read_bytes()[:-1] + b"x")
    elif damage == "list":
        (mirror / f"dists/{SUITE}/main/binary-{ARCHITECTURE}/Packages").write_text("Package: no\n")
    with pytest.raises(kind, match=message) as raised:
        fetch(tmp_path / "roots/root", *packages)
    assert "\n" not in str(raised.value)
    assert sorted(p.name for p in (tmp_path / "roots").iterdir()) == [".root.lock"]


@needs_apt
def test_a_machine_without_a_source_of_debian_is_told_to_add_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = apt_environment(
        tmp_path, "deb file:/mirror noble main\n# deb file:/m trixie main\n"
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PackagesError, match=r"expected one of Debian, found none; add a file to"):
        fetch(tmp_path / "root", "tool")


def test_a_machine_without_apt_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackagesError, match="apt-get: expected it in PATH, found none; "):
        fetch(tmp_path / "root", "tool")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)  # noqa: S607


@needs_apt
@pytest.mark.parametrize("payload_bytes", [3_000_000, 8_000_000], ids=["unpacking", "downloading"])
def test_a_full_disk_is_named_and_keeps_the_root_before(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, payload_bytes: int
) -> None:
    big = Package("big", "1", payload_bytes=payload_bytes)
    for name, value in make_mirror(tmp_path, *PACKAGES, big).items():
        monkeypatch.setenv(name, value)
    root, _ = fetch(small_disk / "root", "tool")
    with pytest.raises(PackageDiskError, match=r"expected .*, found: "):
        fetch(root, "big")
    assert package_versions(root)["tool"] == "1.0-2+deb13u1"
    assert sorted(p.name for p in small_disk.iterdir()) == [".root.lock", "root"]


@needs_apt
def test_sources_are_read_in_both_forms_each_mirror_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "deb [arch=amd64 signed-by=/keys/a.gpg] http://a/debian bookworm main contrib\n"
    lines += "deb http://b/debian stable-updates main\ndeb-src http://c/debian bookworm main\n"
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/x.sources").write_text(
        "# comment: in front\nTypes: deb deb-src\nURIs: http://d/debian http://a/debian/\n"
        "# one between\nSuites: trixie trixie-updates\nComponents: main\nSigned-By:\n KEY\n .\n\n"
        "Types: deb\nURIs: http://e/\nSuites: sid\nComponents: main\nEnabled: no\n\n"
        "Types: deb\nURIs: http://f/\nSuites: sid\nComponents: main\nTrusted: yes\n"
    )
    (tmp_path / "parts/ignored.save").write_text("deb http://g/debian sid main\n")
    environment = apt_environment(tmp_path, lines)
    with (tmp_path / "apt.conf").open("a") as configuration:
        configuration.write(f'Dir::Etc::sourceparts "{tmp_path}/parts";\n')
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    a, d, f = debian_sources()
    assert (a.uri, a.signed_by, a.is_trusted) == ("http://a/debian", " /keys/a.gpg", False)
    assert (d.uri, d.signed_by, d.is_trusted) == ("http://d/debian", "\n KEY\n .", False)
    assert (f.uri, f.signed_by, f.is_trusted) == ("http://f/", "", True)
    assert d.stanza("trixie", "arm64").splitlines()[1:] == [
        *("URIs: http://d/debian", "Suites: trixie", "Components: main"),
        *("Architectures: arm64", "Targets: Packages", "Signed-By:", " KEY", " .", ""),
    ]
