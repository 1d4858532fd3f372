"""The sample of a configuration file: every setting with what it does, as comments."""

import textwrap
from collections.abc import Mapping
from typing import Any, Final

from modeld.config import SETTINGS
from modeld.settings import Setting, shown

_WIDTH: Final = 96
_HEAD: Final = """\
# Settings of modeld, in TOML. Lines without "#" in front are in force; the others show the default,
# or an example where there is none. Paths are relative to this file. Environment variables
# (MODELD_BUS_ADDRESS for bus_address, MODELD_REALTIME_PRIORITY for priority in [realtime]) win
# over this file, options of `modeld run` over both. `modeld config` shows what holds, and why.
"""


def sample_config(values: Mapping[str, Any] | None = None) -> str:
    """Return a complete sample, every line a comment besides those of the values given.

    Args:
        values: What shall be in force, by keys of ``SETTINGS``.
    """
    given = values or {}
    parts = [_HEAD]
    table = ""
    for key, setting in SETTINGS.items():
        at, _, name = key.rpartition(".")
        if at != table:
            table = at
            used = any(other.startswith(f"{table}.") for other in given)
            parts.append(f"{'' if used else '# '}[{table}]\n")
        parts.append(_comment(setting) + _line(name, setting, given.get(key)))
    return "\n".join(parts)


def _comment(setting: Setting) -> str:
    text = f"{setting.doc.text} {_values(setting)}"
    return textwrap.fill(text, _WIDTH, initial_indent="## ", subsequent_indent="## ") + "\n"


def _values(setting: Setting) -> str:
    """Return what values there are, where the line itself does not show it."""
    said = setting.doc.choices or setting.doc.bounds
    return f"({setting.expected})" if said else ""


def _line(name: str, setting: Setting, value: Any) -> str:
    if value is not None:
        return f"{name} = {shown(value)}\n"
    usual = setting.doc.example if setting.default is None else setting.default
    return f"# {name} = {shown(usual)}\n"
