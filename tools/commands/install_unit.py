"""Write the systemd units of the daemons, their user and a commented configuration.

Writes modeld.service, dmonitoringmodeld.service, a file for systemd-sysusers and, unless they
exist, /etc/modeld/config.toml and /etc/modeld/dmonitoring.toml. Each file is replaced atomically. A
unit that was edited is replaced only with --force; an existing configuration is never touched.
Nothing is started: the next commands are printed. A program that is missing, or that the units'
sandbox hides, gives a warning.

--runit writes directories in /etc/sv instead, for a machine with runit.

--beside-openpilot is for a machine that runs openpilot or sunnypilot: the units use openpilot's
user and see its sockets and parameters, and the configuration names its bus in shared memory and
its cameras. OPENPILOT_PREFIX and PARAMS_ROOT are passed on if they are set.

Root is not needed with --print or with a writable --prefix, below which the files then lie.

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

# One line in front of what is written: by it an update knows that nobody has changed the rest.
MARK = "# Written by modeld install-unit; sha256 of what follows: "
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
# Of systemd: a quote, white space or a specifier would be read as something else.
PLAIN_PATH = re.compile(r"/[\w./@+-]*")
# Of openpilot: where it is installed on a device, and what tells several of it apart.
OPENPILOT = Path("/data/openpilot")
PASSED_ON = {"OPENPILOT_PREFIX": re.compile(r"[\w.-]+"), "PARAMS_ROOT": PLAIN_PATH}
# What a service is made of: template, and where it goes.
SYSTEMD = {"daemon.service": "/etc/systemd/system/{name}.service"}
RUNIT = {
    "daemon.run": "/etc/sv/{name}/run",
    "daemon.finish": "/etc/sv/{name}/finish",
    "daemon.log": "/etc/sv/{name}/log/run",
}
DEFAULT_USER = "modeld"
DEFAULT_STACK = "openpilot-2026"


class ChangedFileError(ToolError):
    """A file that would be replaced was changed by somebody."""


@dataclass(frozen=True)
class Daemon:
    """The properties of one daemon; `oom_score` is -1000 (killed never) to 1000 (first)."""

    name: str
    description: str
    config: str
    role: str
    oom_score: int


DAEMONS = (
    Daemon("modeld", "Driving model", "config.toml", "driving", -900),
    Daemon("dmonitoringmodeld", "Driver monitoring model", "dmonitoring.toml", "monitoring", -800),
)


@dataclass(frozen=True)
class Surroundings:
    """The properties of a machine that depend on the other software there.

    `tmp` has the lines that choose the daemon's /tmp, `umask` is that of its files and rings.
    `service` is `SYSTEMD` or `RUNIT`.
    """

    user: str
    protect_home: str = "yes"
    tmp: str = "PrivateTmp=yes"
    umask: str = "0027"
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    makes_user: bool = True
    service: Mapping[str, str] = field(default_factory=SYSTEMD.copy)


@dataclass(frozen=True)
class Planned:
    """A file to write at a path without the prefix; a `kept` one stays if it exists."""

    path: Path
    text: str
    kept: bool = False

    @property
    def mode(self) -> int:
        """Its permissions, whatever the umask is: the daemon's user reads it, and runs scripts."""
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
    """Print or write the files."""
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
    """Return the surroundings; without a user the default, without a stack none.

    Variables of openpilot in `environment` are passed on.

    Raises:
        UsageError: openpilot's user is not known, or a variable has a character that systemd would
            read as something else.
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
        # That of openpilot: others read our rings as they read those of its own daemons.
        umask="0022",
        environment=passed,
        settings={"bus_address": "msgq:", "stack": stack, "camera_server": "visionipc:camerad"},
        makes_user=False,
    )


def owner_of_openpilot(stack: str) -> str:
    """Return the user whose processes share memory and signals with ours.

    Raises:
        UsageError: nothing of openpilot's is found.
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
        "--user: expected openpilot's, whom the daemon shares memory with; found none, as there is "
        f"neither {places[0]} nor {places[1]}; name it, such as --user comma"
    )


def plan(command: Path, config: Path, store: Path, around: Surroundings) -> list[Planned]:
    """Return the files of a machine.

    `command` is the absolute path of ``modeld``, `config` the directory of the configurations.
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
            # Of a fresh machine: every setting as a comment, but for these.
            sample_config({"models_dir": store, "role": daemon.role, **around.settings}),
            kept=True,
        )
        for daemon in DAEMONS
    ]


def write(planned: list[Planned], prefix: Path, *, force: bool) -> dict[Path, str]:
    """Write all files below `prefix`, or none; `force` replaces what somebody has changed.

    Each result is "written", "replaced", "unchanged" or "kept".

    Raises:
        ChangedFileError: one of them was changed; nothing is written.
        OSError: one cannot be read or written.
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
                f"{path}: expected a file that install-unit wrote, found one that was changed; "
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
    """Return what to do after the files are there."""
    if prefix != Path("/"):
        return f"next: copy what is below {prefix} to the machine"
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
    """Put the values in their places, which are written @name@."""
    return re.sub(r"@(\w+)@", lambda place: values[place[1]], template)


def _marked(text: str) -> str:
    """Put the mark in front, but behind the line that says what runs a script."""
    script, text = text.partition("\n")[::2] if text.startswith("#!") else ("", text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "\n".join([*filter(None, [script]), f"{MARK}{digest}", text])


def _is_untouched(found: str) -> bool:
    """Whether a file is as some version of this command wrote it."""
    lines = found.splitlines(keepends=True)
    return found == _marked("".join(line for line in lines if not line.startswith(MARK)))
