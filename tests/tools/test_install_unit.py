"""The systemd units: what is written, what is refused, what systemd says of them."""

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from modeld.service.config_sources import load_config
from tests.tools.conftest import Modeld, Said
from tools.commands import install_unit
from tools.commands.install_unit import DAEMONS
from tools.service import unit_paths
from tools.service.unit_paths import start_problem

BIN = Path(sys.prefix) / "bin/modeld"
UNITS = tuple(f"etc/systemd/system/{daemon.name}.service" for daemon in DAEMONS)
CONFIG = "etc/modeld/config.toml"
# The bound that was asked for; a scale of 0 to 10.
EXPOSURE = 2.5

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


Install = Callable[..., Said]


@pytest.fixture
def install(tmp_path: Path, modeld: Modeld) -> Install:
    return lambda *options, code=0: modeld(
        code, "install-unit", "--prefix", tmp_path, "--bin", BIN, *options
    )


def analyze(*arguments: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *arguments],  # noqa: S607 - where the distribution has it
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(
    unit: str, tmp_path: Path, install: Install
) -> None:
    install()
    assert analyze("verify", "--man=no", str(tmp_path / unit)) == ""


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_exposure_is_within_its_bound(unit: str, tmp_path: Path, install: Install) -> None:
    install()
    said = analyze("security", "--offline=true", "--no-pager", str(tmp_path / unit))
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert level is not None, said
    assert float(level[1]) <= EXPOSURE


def test_what_is_written_can_be_used(tmp_path: Path, install: Install) -> None:
    lines = install("--user", "driver", "--config", "/srv/modeld").out.splitlines()
    written = [line.removesuffix(": written") for line in lines if line.endswith(": written")]
    assert len(written) == len(lines) - 1 == 5
    for path in map(Path, written):
        assert path.stat().st_mode & 0o777 == 0o644
        assert not re.search(r"@\w+@", path.read_text(encoding="utf-8"))
    unit = (tmp_path / UNITS[1]).read_text(encoding="utf-8")
    assert f"\nExecStart={BIN} run --config /srv/modeld/dmonitoring.toml\n" in unit
    assert "\nUser=driver\n" in unit
    assert load_config(tmp_path / "srv/modeld/dmonitoring.toml", {}, []).role == "monitoring"
    assert load_config(tmp_path / "srv/modeld/config.toml", {}, []).models_dir is not None


def test_files_are_the_same_whatever_the_umask(tmp_path: Path, install: Install) -> None:
    before = os.umask(0o077)
    try:
        install()
    finally:
        os.umask(before)
    assert (tmp_path / CONFIG).stat().st_mode & 0o777 == 0o644


def test_a_unit_nobody_changed_is_replaced(tmp_path: Path, install: Install) -> None:
    install("--user", "before")
    assert f"{tmp_path / UNITS[0]}: replaced" in install("--user", "after").out
    assert "\nUser=after\n" in (tmp_path / UNITS[0]).read_text(encoding="utf-8")
    assert f"{tmp_path / UNITS[0]}: unchanged" in install("--user", "after").out


def test_a_unit_that_was_changed_is_refused(tmp_path: Path, install: Install) -> None:
    install()
    changed = tmp_path / UNITS[1]
    text = changed.read_text(encoding="utf-8") + "# mine\n"
    changed.write_text(text, encoding="utf-8")
    (tmp_path / UNITS[0]).unlink()
    assert str(changed) in install(code=1).err
    assert changed.read_text(encoding="utf-8") == text
    assert not (tmp_path / UNITS[0]).exists()
    install("--force")
    assert changed.read_text(encoding="utf-8") != text


def test_a_configuration_is_never_replaced(tmp_path: Path, install: Install) -> None:
    (tmp_path / CONFIG).parent.mkdir(parents=True)
    (tmp_path / CONFIG).write_text("demo = true\n", encoding="utf-8")
    install("--force")
    assert (tmp_path / CONFIG).read_text(encoding="utf-8") == "demo = true\n"


def test_print_writes_nothing(tmp_path: Path, install: Install) -> None:
    printed = install("--print").out
    assert list(tmp_path.iterdir()) == []
    for path, text in install("--print", "--json").json["files"].items():
        assert f"# {path}\n{text}" in printed


SANDBOX = "ProtectHome=yes\nPrivateTmp=yes\n"


def test_a_program_that_the_sandbox_hides_is_a_warning(tmp_path: Path, install: Install) -> None:
    place = ("--config", "/run/user/0/modeld", "--store", "/home/me/models")
    said = install("--bin", "/root/.venv/bin/modeld", *place).err.splitlines()
    assert [line.partition("; ")[0].partition(": the unit does not see it: ") for line in said] == [
        (
            "W tools.commands.install_unit: ExecStart=/root/.venv/bin/modeld",
            SEES_NOT,
            "ProtectHome=yes hides /root",
        ),
        (
            "W tools.commands.install_unit: --config /run/user/0/modeld",
            SEES_NOT,
            "ProtectHome=yes hides /run/user",
        ),
        (
            "W tools.commands.install_unit: --store /home/me/models",
            SEES_NOT,
            "ProtectHome=yes hides /home",
        ),
    ]
    found = install("--bin", "/root/.venv/bin/modeld", *place, "--json").json["warnings"]
    assert len(found) == 3
    assert "PrivateTmp=yes hides /tmp" in install("--bin", "/tmp/x").err  # noqa: S108
    assert install("--bin", "/rooted/modeld").err == ""
    # Nothing is hidden where runit starts it, and homes can be read beside openpilot.
    assert install("--runit", "--bin", "/root/modeld").err == ""
    beside = ("--beside-openpilot", "--user", "comma", "--bin", "/tmp/modeld")  # noqa: S108 - none is written
    assert install("--prefix", tmp_path / "b", *beside).err == ""


SEES_NOT = ": the unit does not see it: "


def test_what_a_program_needs_to_start_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_paths, "HIDDEN", {"ProtectHome=yes": (tmp_path / "home",)})
    python, command = tmp_path / "home/python", tmp_path / "opt/bin/modeld"
    for path in (python, command):
        path.parent.mkdir(parents=True)
    problem = partial(start_problem, command, SANDBOX)
    assert problem() == "expected a program, found none"
    command.write_text(f"#!{command.parent}/python -P\n", encoding="utf-8")
    assert problem() == "expected a program, found a file that may not be run"
    command.chmod(0o755)
    assert problem() == f"expected a program, {command.parent}/python, which it needs: found none"
    # As of an environment that was made with an interpreter of one's own.
    python.write_bytes(b"\x7fELF")
    python.chmod(0o755)
    (command.parent / "python").symlink_to(python)
    reason = f"ProtectHome=yes hides {tmp_path}/home"
    assert problem() == f"the unit does not see {python}, which it needs: {reason}"
    assert start_problem(command, "ProtectHome=read-only\n") == ""


BESIDE = ("--beside-openpilot", "--user", "comma")


def differing(before: str, after: str) -> set[str]:
    """The lines of a unit that are not in the other one, without its digest."""
    return set(after.splitlines()[1:]) - set(before.splitlines()[1:])


def test_beside_openpilot_only_what_must_differ_does(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENPILOT_PREFIX", raising=False)
    monkeypatch.delenv("PARAMS_ROOT", raising=False)
    plain, beside = (install("--print", "--json", *words).json["files"] for words in ((), BESIDE))
    assert plain.keys() - beside.keys() == {"/etc/sysusers.d/modeld.conf"}
    unit = "/etc/systemd/system/modeld.service"
    assert differing(plain[unit], beside[unit]) == {
        *("User=comma", "ProtectHome=read-only", "PrivateTmp=no", "ReadWritePaths=/tmp"),
        "UMask=0022",
    }
    monkeypatch.setenv("OPENPILOT_PREFIX", "P")
    monkeypatch.setenv("PARAMS_ROOT", "/data/bench")
    passed = install("--print", "--json", *BESIDE).json["files"]
    variables = "OPENPILOT_PREFIX=P PARAMS_ROOT=/data/bench"
    assert differing(beside[unit], passed[unit]) == {
        f"Environment=MODELD_CACHE_DIR=%C/modeld {variables}"
    }


@pytest.mark.parametrize("stack", ["openpilot-2026", "sunnypilot"])
def test_the_configuration_beside_openpilot_names_its_bus_and_cameras(
    tmp_path: Path, install: Install, stack: str
) -> None:
    install(*BESIDE, "--stack", stack, "--store", "/data/modeld/models")
    for name, role in (("config", "driving"), ("dmonitoring", "monitoring")):
        config = load_config(tmp_path / f"etc/modeld/{name}.toml", {}, [])
        assert (config.bus_address, config.camera_server) == ("msgq:", "visionipc:camerad")
        assert (config.stack, config.role) == (stack, role)
        assert config.models_dir == Path("/data/modeld/models")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_a_unit_beside_openpilot_as_safe(
    unit: str, tmp_path: Path, install: Install
) -> None:
    # Of this machine's users one that is not root, as openpilot's on a device.
    install("--beside-openpilot", "--user", "daemon")
    assert analyze("verify", "--man=no", str(tmp_path / unit)) == ""
    said = analyze("security", "--offline=true", "--no-pager", str(tmp_path / unit))
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert level is not None, said
    assert float(level[1]) <= EXPOSURE
    # What msgq wakes its readers with, and waits with.
    calls = analyze("syscall-filter", "@process", "@signal").split()
    assert {"tkill", "rt_sigtimedwait"} <= set(calls)


def test_the_user_is_the_owner_of_openpilots_files(
    tmp_path: Path, install: Install, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SUDO_USER", "OPENPILOT_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PARAMS_ROOT", str(tmp_path / "params"))
    monkeypatch.setattr(install_unit, "OPENPILOT", tmp_path / "openpilot")
    place = f"{tmp_path}/params/d nor {tmp_path}/openpilot"
    modeld.refused(2, place, "install-unit", "--beside-openpilot", "--print")
    for path in (tmp_path / "openpilot", tmp_path / "params/d"):
        path.mkdir(parents=True)
        files = install("--print", "--json", "--beside-openpilot").json["files"]
        owner = f"\nUser={pwd.getpwuid(os.getuid()).pw_name}\n"
        assert owner in files["/etc/systemd/system/modeld.service"]
    monkeypatch.setenv("OPENPILOT_PREFIX", "50%n")
    modeld.refused(2, "OPENPILOT_PREFIX: expected", "install-unit", *BESIDE, "--print")
