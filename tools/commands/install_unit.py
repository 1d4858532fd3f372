"""Write the systemd units of the daemons, their user and a commented configuration.

Writes modeld.service, dmonitoringmodeld.service, a file for systemd-sysusers and, unless they
exist, /etc/modeld/config.toml and /etc/modeld/dmonitoring.toml. Each file is replaced atomically.
An edited unit is replaced only with --force. An existing configuration is never changed. Nothing is
started; the commands to run next are printed. The command warns of a program that is missing or
hidden by the sandbox of the units.

--runit writes directories in /etc/sv instead, for a machine with runit.

--beside-openpilot is for a machine that runs openpilot or sunnypilot: the units use openpilot's
user and see its sockets and parameters, and the configuration names its bus in shared memory and
its cameras. OPENPILOT_PREFIX and PARAMS_ROOT are passed on if they are set.

Root is not needed with --print, or with a writable --prefix; the files are then written below it.

Example:
  modeld install-unit
  modeld install-unit --print
  modeld install-unit --prefix build/root --bin /usr/bin/modeld
  modeld install-unit --runit
  modeld install-unit --beside-openpilot --user comma --stack sunnypilot
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import pwd
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from cereal.stacks import STACKS
from modeld.service.config import Config
from modeld.service.config_sources import sample_config
from modeld.store.model_store import DEFAULT_STORE
from runtime.files.user_file import whole_file
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.service.unit_paths import unit_warnings

logger = logging.getLogger(__name__)

# Comment line in each written file. An update compares its digest to detect manual changes.
MARK = "# Written by modeld install-unit; sha256 of what follows: "
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
# Paths without characters that systemd interprets: quotes, white space and specifiers.
PLAIN_PATH = re.compile(r"/[\w./@+-]*")
# Directory of openpilot on a device, and the variables of its processes that are passed on, with
# their permitted values.
OPENPILOT = Path("/data/openpilot")
PASSED_ON = {"OPENPILOT_PREFIX": re.compile(r"[\w.-]+"), "PARAMS_ROOT": PLAIN_PATH}
# Files of a service: template, and path to write.
SYSTEMD = {"daemon.service": "/etc/systemd/system/{name}.service"}
RUNIT = {
    "daemon.run": "/etc/sv/{name}/run",
    "daemon.finish": "/etc/sv/{name}/finish",
    "daemon.log": "/etc/sv/{name}/log/run",
}
DEFAULT_USER = "modeld"
DEFAULT_STACK = "openpilot-2026"


class ChangedFileError(ToolError):
    """A file that would be replaced has manual changes."""


@dataclass(frozen=True)
class Daemon:
    """One of the two daemons that get a unit."""

    name: str
    description: str
    config: str  # file name of its configuration
    role: str
    oom_score: int  # -1000 (never killed when memory runs out) to 1000 (killed first)


DAEMONS = (
    Daemon("modeld", "Driving model", "config.toml", "driving", -900),
    Daemon("dmonitoringmodeld", "Driver monitoring model", "dmonitoring.toml", "monitoring", -800),
)


@dataclass(frozen=True)
class Surroundings:
    """Values in the units and the configuration that depend on other software of the machine."""

    user: str
    protect_home: str = "yes"
    tmp: str = "PrivateTmp=yes"  # lines of the unit that choose the daemon's /tmp
    umask: str = "0027"  # mask for the daemon's files and rings
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # non-default settings
    makes_user: bool = True  # whether to write a file for systemd-sysusers
    service: Mapping[str, str] = field(default_factory=SYSTEMD.copy)  # `SYSTEMD` or `RUNIT`


@dataclass(frozen=True)
class Planned:
    """A file to write."""

    path: Path  # absolute, without --prefix
    text: str
    kept: bool = False  # whether an existing file stays as it is

    @property
    def mode(self) -> int:
        """The permission bits, regardless of the umask: readable by all, scripts executable."""
        return 0o755 if self.text.startswith("#!") else 0o644


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--print", action="store_true", help="print the files, write nothing")
    parser.add_argument(
        "--prefix", type=Path, default=Path("/"), metavar="DIRECTORY", help="write below it (/)"
    )
    parser.add_argument(
        "--bin", type=Path, metavar="PATH", help="the command the units start (this one)"
    )
    parser.add_argument(
        "--user",
        metavar="NAME",
        help=f"user of the units ({DEFAULT_USER}; beside openpilot the owner of its files)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("/etc/modeld"),
        metavar="DIRECTORY",
        help="where the units look for their configuration (/etc/modeld)",
    )
    parser.add_argument(
        "--store",
        type=Path,
        default=DEFAULT_STORE,
        metavar="DIRECTORY",
        help=f"store of models, for a new configuration ({DEFAULT_STORE})",
    )
    parser.add_argument(
        "--beside-openpilot", action="store_true", help="for a machine on which openpilot runs"
    )
    parser.add_argument(
        "--stack",
        choices=STACKS,
        default=DEFAULT_STACK,
        metavar="NAME",
        help=f"the stack that runs there: {', '.join(STACKS)} ({DEFAULT_STACK})",
    )
    parser.add_argument(
        "--runit", action="store_true", help="write runit services instead of systemd units"
    )
    parser.add_argument("--force", action="store_true", help="replace edited units, too")


def run(args: argparse.Namespace) -> int:
    """Print or write the files and return exit code 0."""
    command = args.bin or Path(sys.prefix) / "bin" / "modeld"
    places = {"--config": args.config, "--store": args.store}
    for option, path in {"--bin": command, **places}.items():
        if not PLAIN_PATH.fullmatch(str(path)):
            raise UsageError(
                f"{option}: expected an absolute path of letters, digits and . _ @ + -, got {path}"
            )
    around = surroundings(args.user, os.environ, args.stack if args.beside_openpilot else None)
    if not NAME.fullmatch(around.user):
        raise UsageError(f"--user: expected the name of a user, got {around.user!r}")
    if args.runit:
        around = replace(around, service=RUNIT, makes_user=False)
    planned = plan(command, args.config, args.store, around)
    is_here = args.prefix == Path("/")
    warnings = list(unit_warnings(command, planned[0].text, places, is_here=is_here))
    for warning in warnings:
        logger.warning("%s", warning)
    if args.print:
        if args.json:
            files = {str(one.path): one.text for one in planned}
            print_json({"files": files, "warnings": warnings})
        else:
            print("\n".join(f"# {one.path}\n{one.text}" for one in planned), end="")
        return 0
    done = write(planned, args.prefix, force=args.force)
    if args.json:
        files = {str(path): what for path, what in done.items()}
        print_json({"files": files, "warnings": warnings})
        return 0
    for path, what in done.items():
        print(f"{path}: {what}")
    print(next_steps(args.prefix, command, args.config, around))
    return 0


def surroundings(
    user: str | None, environment: Mapping[str, str], stack: str | None
) -> Surroundings:
    """Return the values for a machine with the given stack, or with none (None).

    `user` defaults to `DEFAULT_USER`, or to openpilot's user if there is a stack. Variables of
    openpilot in `environment` are passed on to the daemons.

    Raises:
        UsageError: openpilot's user is unknown, or a variable has a character that systemd would
            interpret.
    """
    if stack is None:
        return Surroundings(user or DEFAULT_USER)
    passed = {name: environment[name] for name in PASSED_ON if environment.get(name)}
    for name, value in passed.items():
        if not PASSED_ON[name].fullmatch(value):
            raise UsageError(f"{name}: expected letters, digits and a few signs, found {value!r}")
    return Surroundings(
        user or owner_of_openpilot(stack),
        protect_home="read-only",
        tmp="PrivateTmp=no\nReadWritePaths=/tmp",
        # openpilot's own umask: other processes can read our rings as they read openpilot's.
        umask="0022",
        environment=passed,
        settings={"bus_address": "msgq:", "stack": stack, "camera_server": "visionipc:camerad"},
        makes_user=False,
    )


def owner_of_openpilot(stack: str) -> str:
    """Return the user that openpilot runs as, so that the daemons can share its memory.

    Raises:
        UsageError: openpilot's files are missing, or their owner has no name.
    """
    places = (Config(stack=stack).parameters(), OPENPILOT)
    for place in places:
        if place.is_dir():
            number = place.stat().st_uid
            try:
                return pwd.getpwuid(number).pw_name
            except KeyError:
                raise UsageError(
                    f"--user: expected a name of user {number}, who owns {place}, found none"
                ) from None
    raise UsageError(
        "--user: expected openpilot's user, with whom the daemon shares memory, found neither "
        f"{places[0]} nor {places[1]}; name the user, such as --user comma"
    )


def plan(command: Path, config: Path, store: Path, around: Surroundings) -> list[Planned]:
    """Return the files to write on a machine.

    `command` is the absolute path of ``modeld``, `config` the directory of the configurations and
    `store` the model store.
    """
    units = resources.files("modeld") / "units"
    templates = {name: (units / name).read_text(encoding="utf-8") for name in around.service}
    users = (units / "modeld.sysusers").read_text(encoding="utf-8")
    planned = []
    for daemon in DAEMONS:
        values = {
            "name": daemon.name,
            "description": daemon.description,
            "bin": str(command),
            "config": str(config / daemon.config),
            "user": around.user,
            "protect_home": around.protect_home,
            "tmp": around.tmp,
            "umask": around.umask,
            "environment": "".join(f" {name}={it}" for name, it in around.environment.items()),
            "oom_score": str(daemon.oom_score),
        }
        for name, place in around.service.items():
            path = Path(place.format(name=daemon.name))
            planned.append(Planned(path, _marked(_filled(templates[name], values))))
    if around.makes_user:
        text = _filled(users, {"user": around.user})
        planned.append(Planned(Path("/etc/sysusers.d/modeld.conf"), _marked(text)))
    return planned + [
        Planned(
            config / daemon.config,
            # All other settings are commented out.
            sample_config({"models_dir": store, "role": daemon.role, **around.settings}),
            kept=True,
        )
        for daemon in DAEMONS
    ]


def write(planned: list[Planned], prefix: Path, *, force: bool) -> dict[Path, str]:
    """Write the planned files below `prefix`; `force` also replaces files with manual changes.

    Returns for each path "written", "replaced", "unchanged" or "kept".

    Raises:
        ChangedFileError: a file has manual changes. No file is written.
        OSError: a file cannot be read or written.
    """
    done: dict[Path, str] = {}
    for one in planned:
        path = prefix / one.path.relative_to("/")
        found = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
        if found is None:
            done[path] = "written"
        elif found == one.text:
            done[path] = "unchanged"
        elif one.kept:
            done[path] = "kept"
        elif force or _is_untouched(found):
            done[path] = "replaced"
        else:
            raise ChangedFileError(
                f"{path}: expected a file that install-unit wrote, found a changed one; "
                "move your changes to a file of `systemctl edit`, for runit to conf beside it, or "
                "replace it with --force"
            )
    for one, (path, what) in zip(planned, done.items(), strict=True):
        if what in ("written", "replaced"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(one.text.encode())
            path.chmod(one.mode)
    return done


def next_steps(prefix: Path, command: Path, config: Path, around: Surroundings) -> str:
    """Return the text of the next steps after `write`; the arguments are those of `plan`."""
    if prefix != Path("/"):
        return f"next: copy the files below {prefix} to the machine"
    settings = config / DAEMONS[0].config
    if around.service == RUNIT:
        groups = "-G video,render " if around.user == DEFAULT_USER else ""
        first = f"useradd -r {groups}{around.user} (groups of the GPU's node in /dev)"
        start = "ln -s /etc/sv/modeld /var/service/ (Debian: /etc/service/)"
    else:
        first = "systemd-sysusers" if around.makes_user else "block openpilot's own: BLOCK=modeld"
        start = "systemctl daemon-reload\n  systemctl enable --now modeld.service"
    return (
        "next:\n"
        f"  {first}\n"
        f"  {command} models add driving.pkl --name NAME --version VERSION --config {settings}\n"
        f"  {command} models select NAME --config {settings}\n"
        f"  {start}\n"
        f"settings: {settings}"
    )


def _filled(template: str, values: dict[str, str]) -> str:
    """Return the template with each @name@ replaced by its value."""
    return re.sub(r"@(\w+)@", lambda place: values[place[1]], template)


def _marked(text: str) -> str:
    """Return the text with the mark as its first line, or as its second after `#!`."""
    script, text = text.partition("\n")[::2] if text.startswith("#!") else ("", text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "\n".join([*filter(None, [script]), f"{MARK}{digest}", text])


def _is_untouched(found: str) -> bool:
    """Return whether a file is unchanged since a version of this command wrote it."""
    lines = found.splitlines(keepends=True)
    return found == _marked("".join(line for line in lines if not line.startswith(MARK)))
