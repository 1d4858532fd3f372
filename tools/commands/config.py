"""Show the daemon's settings in force, and where each comes from.

The command accepts the options of modeld run, reads the same file and variables, and makes the same
checks. --changed leaves out defaults. --sample prints a configuration file in which each setting is
commented out and explained; the file is valid as it is.

Example:
  modeld config --config /etc/modeld/config.toml
  modeld config --sample > config.toml
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from modeld.service.config_sources import load_settings, sample_config
from modeld.service.settings import shown
from tools.lib.json_output import print_json
from tools.service.options import add_setting_arguments, settings_given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_setting_arguments(parser)
    parser.add_argument(
        "--changed", action="store_true", help="only settings that do not come from a default"
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="print a sample file instead, with all settings commented out",
    )


def run(args: argparse.Namespace) -> int:
    """Print the settings and return exit code 0."""
    if args.sample:
        print(sample_config(), end="")
        return 0
    loaded = load_settings(args.config, os.environ, settings_given(args))
    rows = [
        (key, value, loaded.sources[key])
        for key, value in loaded.config.values().items()
        if not (args.changed and loaded.sources[key] == "default")
    ]
    if args.json:
        print_json({key: {"value": _plain(value), "source": source} for key, value, source in rows})
        return 0
    keys = max((len(key) for key, _, _ in rows), default=0)
    values = max((len(shown(value)) for _, value, _ in rows), default=0)
    for key, value, source in rows:
        print(f"{key:{keys}}  {shown(value):{values}}  {source}")
    return 0


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
