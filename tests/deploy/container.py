"""A bare Debian with systemd, booted by systemd-nspawn: the first choice of the deployment test."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.deploy.machine import DeployError, Machine, UnavailableError, checked
from tests.deploy.page import Step

SUITE = "bookworm"
# What a Debian with systemd has beside the essential packages.
PACKAGES = "systemd,systemd-sysv,dbus,ca-certificates"
TOOLS = ("debootstrap", "systemd-nspawn", "nsenter")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_S = 60.0
PROPERTIES = "ActiveState,SubState,StatusText,MainPID,NRestarts,Result,ExecMainStatus"
CA_NAME = "etc/ssl/certs/deploy-test.pem"

# The camera process: another user than the daemon's, whose group it shares.
CAMERA = """\
[Service]
DynamicUser=yes
Group=modeld
ExecStart=/bin/sh -c "sleep infinity | exec /opt/modeld/bin/python -m tools.bench.camera \
--server camerad --bus {bus} --size 1928 1208 --frames 1 --rate-hz 20"
"""
# What the unit has to allow.
REALTIME = """\
[realtime]
cpus = "0"
priority = 50
lock_memory = true
"""
# CarParams of a car that was recognised, where the stack's parameters lie.
CAR = """
from pathlib import Path
from cereal.schema import new_event
event = new_event("carParams", mono_time_ns=1)
event.carParams.carFingerprint = "DEPLOY"
place = Path("/data/params/d")
place.mkdir(parents=True, exist_ok=True)
(place / "CarParams").write_bytes(event.carParams.copy().to_bytes())
"""


class Container(Machine):
    """A booted container.

    Args:
        pristine: root of a bare Debian; made if it is not there. It is copied, not changed.

    Raises:
        UnavailableError: it cannot be made or booted here.
    """

    what = "a bare Debian with systemd, in systemd-nspawn"

    def __init__(self, pristine: Path) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if os.geteuid() != 0 or missing:
            raise UnavailableError(
                f"{', '.join(missing)} not installed" if missing else "it takes root"
            )
        if not pristine.exists():
            _debootstrap(pristine)
        # Not below a directory that others may not enter, nor in memory: it becomes 1 GB large.
        self._place = Path(tempfile.mkdtemp(prefix="modeld-deploy-", dir="/var/tmp"))
        self._place.chmod(0o755)
        self.root = self._place / "root"
        self.work = self.root / "root"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0
        try:
            checked(["cp", "-a", str(pristine), str(self.root)])
            _pass_on_pip(self.root)
            self._boot()
        except BaseException:
            self.close()
            raise

    def _boot(self) -> None:
        log = (self._place / "boot.log").open("wb")
        with log:
            self._nspawn = subprocess.Popen(
                [  # noqa: S607 -- wherever the distribution has it
                    "systemd-nspawn", "-q", "-D", str(self.root), "--register=no", "--keep-unit",
                    "--link-journal=no", "--resolv-conf=copy-host", "--console=pipe",
                    "--capability=CAP_IPC_LOCK", "-b",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline and self._nspawn.poll() is None:
            time.sleep(0.2)
            # Not the first child, which makes the container and then ends.
            self._leader = _child_of(self._nspawn.pid)
            if self._leader:
                with contextlib.suppress(DeployError):
                    state = self.shell("systemctl is-system-running || true").strip()
                    if state in ("running", "degraded"):
                        return
        text = (self._place / "boot.log").read_text(encoding="utf-8", errors="replace")
        raise UnavailableError(f"the container does not boot: {text[-1000:].strip()}")

    def takes(self, step: Step) -> bool:
        return bool(step.command)

    def follow(self, step: Step) -> str:
        return self.shell(step.command)

    def shell(self, command: str, timeout_s: float = 300) -> str:
        """Run a command as root, in /root, with a fresh environment."""
        return checked([*self._inside(), "/bin/sh", "-euc", command], timeout_s=timeout_s)

    def _inside(self) -> list[str]:
        return [
            "nsenter", "-t", str(self._leader), "-m", "-u", "-i", "-n", "-p", "--root",
            "env", "-i", "-C", "/root", f"PATH={PATH}",
            "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
        ]  # fmt: skip

    def python(self, name: str, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
        command = [*self._inside(), "/opt/modeld/bin/python", f"/root/{name}", *arguments]
        with output.open("wb") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file)

    def prepare(self, bus: str) -> None:
        """Set the bus, install car and camera."""
        config = self.path("/etc/modeld/config.toml")
        text = config.read_text(encoding="utf-8")
        config.write_text(f'bus_address = "{bus}"\n{text}\n{REALTIME}', encoding="utf-8")
        self.shell(f"/opt/modeld/bin/python - <<'END'\n{CAR}\nEND")
        unit = self.root / "etc/systemd/system/camera.service"
        unit.write_text(CAMERA.format(bus=bus), encoding="utf-8")
        self.shell("systemctl daemon-reload")

    def camera(self, *, on: bool) -> None:
        self.shell(f"systemctl {'start' if on else 'stop'} camera.service")

    def control(self, verb: str) -> None:
        self.shell(f"systemctl {verb} modeld.service")

    def signal(self, number: int) -> None:
        self.shell(f"kill -{number} {self.show()['MainPID']}")

    def show(self) -> dict[str, str]:
        lines = self.shell(f"systemctl show modeld.service -p {PROPERTIES}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def journal(self) -> str:
        return self.shell("journalctl --no-pager -o short-monotonic -u modeld.service")

    def close(self) -> None:
        """Power off, by force if it must be, and remove the root."""
        if self._nspawn is not None:
            with contextlib.suppress(ProcessLookupError):
                if self._leader:
                    os.kill(self._leader, signal.SIGRTMIN + 4)
                    self._wait(15)
                    os.kill(self._leader, signal.SIGKILL)
                    self._wait(5)
            self._nspawn.kill()
            self._nspawn.wait()
            _remove_groups()
        if any(str(self._place) in line for line in Path("/proc/self/mounts").open()):  # noqa: SIM115
            print(f"something is mounted below {self._place}; it is left", file=sys.stderr)
            return
        shutil.rmtree(self._place)

    def _wait(self, seconds: float) -> None:
        assert self._nspawn is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._nspawn.wait(seconds)


def _remove_groups() -> None:
    """Remove the control groups that systemd-nspawn leaves behind; those in use stay."""
    for name in ("payload", "supervisor"):
        for top in (*Path("/sys/fs/cgroup").glob(name), *Path("/sys/fs/cgroup").glob(f"*/{name}")):
            for group in (*sorted(top.rglob("*/"), reverse=True), top):
                with contextlib.suppress(OSError):
                    group.rmdir()


def _debootstrap(target: Path) -> None:
    """Make the root of a bare Debian; there is none if it fails."""
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(part)]
    try:
        checked(command, timeout_s=400)
    except DeployError as error:
        raise UnavailableError(f"debootstrap: {str(error)[-500:]}") from error
    part.rename(target)


def _pass_on_pip(root: Path) -> None:
    """Give the container what this machine's pip needs: an index of its own, a certificate."""
    listed = checked([sys.executable, "-m", "pip", "config", "list"])
    found = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = value.strip("'\"")
    lines = ["[global]"]
    for name in ("index-url", "extra-index-url", "trusted-host"):
        urls = [url for url in found.get(name, "").split() if not url.startswith("file:")]
        if urls:
            lines.append(f"{name} = {' '.join(urls)}")
    if "cert" in found and Path(found["cert"]).exists():
        shutil.copy(found["cert"], root / CA_NAME)
        lines.append(f"cert = /{CA_NAME}")
    (root / "etc/pip.conf").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else 0
