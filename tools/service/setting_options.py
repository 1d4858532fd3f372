"""Options of commands that take the daemon's settings, made from the settings' descriptions."""

from __future__ import annotations

import argparse
from pathlib import Path

from modeld.service.config import SETTINGS
from modeld.service.config_sources import Given
from modeld.service.settings import Setting


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --config, the options of settings, and --set for all others."""
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings file")
    for setting in SETTINGS.values():
        name, _, placeholder = (setting.doc.option or "").partition(" ")
        if setting.kind is bool and name:
            parser.add_argument(
                name, dest=_dest(setting), action="store_const", const="true", help=_help(setting)
            )
        elif name:
            parser.add_argument(name, dest=_dest(setting), metavar=placeholder, help=_help(setting))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting by its key in the file, such as camera.road.width=960; may be repeated",
    )


def settings_given(args: argparse.Namespace) -> list[Given]:
    """Return the settings from options, in the order of increasing weight: -v, options, --set."""
    found = []
    if args.verbosity < 0:
        found.append(Given("log_level", "error", "-q"))
    elif args.verbosity > 0:
        found.append(Given("log_level", "debug", "-v"))
    if args.verbosity > 1:
        found.append(Given("log_tracebacks", "true", "-vv"))
    for setting in SETTINGS.values():
        text = getattr(args, _dest(setting), None)
        if text is not None and setting.doc.option:
            found.append(Given(setting.key, text, setting.doc.option.partition(" ")[0]))
    for pair in args.set:
        key, _, text = pair.partition("=")
        found.append(Given(key.strip(), text.strip(), f"--set {key.strip()}"))
    return found


def _dest(setting: Setting) -> str:
    return f"setting:{setting.key}"


def _help(setting: Setting) -> str:
    text = setting.doc.text.rstrip(".")
    if text.split()[0][1:].islower():  # no name such as OpenCL
        text = text[0].lower() + text[1:]
    if setting.doc.choices:
        text += f": {', '.join(setting.doc.choices)}"
    if setting.default is None or setting.kind is bool:
        return text
    return f"{text} ({setting.default})"
