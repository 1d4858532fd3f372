"""Services of runit: what is written, and what runsv does with it."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools.conftest import Modeld

SERVICES = ("modeld", "dmonitoringmodeld")
# Of this machine's users one that is not root.
USER = "daemon"

needs_runit = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(name) is None for name in ("runsv", "chpst", "sv")),
    reason="runit (runsv, chpst, sv) is not installed, or this is not root",
)


def install(modeld: Modeld, prefix: Path, *options: object) -> dict[str, str]:
    words = ("install-unit", "--runit", "--prefix", prefix, "--json", *options)
    files: dict[str, str] = modeld(0, *words).json["files"]
    return files


def test_scripts_are_written_replaced_and_kept(tmp_path: Path, modeld: Modeld) -> None:
    files = install(modeld, tmp_path)
    assert set(files.values()) == {"written"}
    scripts = [tmp_path / f"etc/sv/{n}" / p for n in SERVICES for p in ("run", "finish", "log/run")]
    assert sorted(files) == sorted(
        map(str, [*scripts, *(tmp_path / "etc/modeld").iterdir()])
    )  # neither units nor a file of users
    for script in scripts:
        assert script.stat().st_mode & 0o777 == 0o755
        subprocess.run(["/bin/sh", "-n", str(script)], check=True)
    assert set(install(modeld, tmp_path).values()) == {"unchanged"}
    assert install(modeld, tmp_path, "--user", USER)[str(scripts[0])] == "replaced"
    with scripts[0].open("a") as file:
        file.write("# mine\n")
    modeld.refused(1, str(scripts[0]), "install-unit", "--runit", "--prefix", tmp_path)


@pytest.fixture
def service(modeld: Modeld) -> Iterator[Callable[[str], Path]]:
    """Start a service whose daemon is a script, in a directory where others may be; end it."""
    place = Path(tempfile.mkdtemp(prefix="modeld-runit-"))
    place.chmod(0o755)
    directory, started = place / "etc/sv/modeld", []

    def start(daemon: str) -> Path:
        program = place / "daemon"
        program.write_text(f"#!/bin/sh\n{daemon}\n", encoding="utf-8")
        program.chmod(0o755)
        install(modeld, place, "--bin", program, "--user", USER)
        settings = f"RUNTIME_DIRECTORY={place}/run MODELD_CACHE_DIR={place}/cache\n"
        (directory / "conf").write_text(settings, encoding="utf-8")
        shutil.rmtree(directory / "log")
        command = ["runsv", str(directory)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return place

    yield start
    for process in started:
        # It then ends the daemon, and itself.
        process.terminate()
        process.wait(timeout=20)
    shutil.rmtree(place)


def wait_for(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def said_by(path: Path, lines: int) -> list[str]:
    wait_for(lambda: path.exists() and path.read_text().count("\n") >= lines, str(path))
    return path.read_text().splitlines()


@needs_runit
def test_the_daemon_has_its_user_and_limits_and_is_started_again(
    service: Callable[[str], Path],
) -> None:
    place = service('echo "$(id -un) $(ulimit -c) $*" >>"$RUNTIME_DIRECTORY/said"; kill -9 $$')
    expected = f"{USER} 0 run --config /etc/modeld/config.toml"
    assert said_by(place / "run/said", 2)[:2] == [expected] * 2


@needs_runit
def test_a_wrong_configuration_is_not_tried_again(service: Callable[[str], Path]) -> None:
    place = service('echo x >>"$RUNTIME_DIRECTORY/said"; exit 2')
    state = place / "etc/sv/modeld/supervise/stat"
    wait_for(lambda: state.exists() and state.read_text() == "down\n", "it is still started")
    assert said_by(place / "run/said", 1) == ["x"]
