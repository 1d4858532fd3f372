"""Reads settings from defaults, a TOML file, environment variables and options.

Later sources override earlier ones. All problems in all sources are reported together in one line.
"""

import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from modeld.errors import ConfigError
from modeld.service.config import (
    RAW_PREDICTIONS_VARIABLE,
    SETTINGS,
    SIMULATION_VARIABLE,
    Config,
    RealtimeConfig,
)
from modeld.service.settings import Setting, differing, shown, suggestion
from modeld.vehicle.cameras import Camera, DeviceCameras
from runtime.files.user_file import read_given

PREFIX: Final = "MODELD_"
# Variables with the same prefix that are not settings (docs/env-vars.md).
OTHER_VARIABLES: Final = ("MODELD_ADRENO_DIR", "MODELD_CACHE_DIR", "MODELD_POCL_CPU")
MAX_FILE_BYTES: Final = 1 << 20
# Tests of the daemon may set variables of this prefix for their own use.
TEST_PREFIX: Final = "MODELD_TEST_"

# Settings whose defaults come from variables of the driving stack.
_BY_STACK: Final = {
    "send_raw_predictions": RAW_PREDICTIONS_VARIABLE,
    "simulation": SIMULATION_VARIABLE,
}
_BY_VARIABLE: Final = {setting.variable: key for key, setting in SETTINGS.items()}
_TABLES: Final = tuple(dict.fromkeys(key.rpartition(".")[0] for key in SETTINGS if "." in key))


class Given(NamedTuple):
    """A setting given as a command line option."""

    key: str  # key of ``SETTINGS``; any other is an error
    text: str  # value as text
    option: str  # name of the option, for messages


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and the source of each value."""

    config: Config
    sources: Mapping[str, str]  # key -> "default", "file PATH", "variable NAME" or "option NAME"


def load_config(
    path: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    options: Iterable[Given] = (),
) -> Config:
    """Return the settings; arguments and errors are those of `load_settings`."""
    return load_settings(path, environment, options).config


def load_settings(
    path: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    options: Iterable[Given] = (),
) -> LoadedSettings:
    """Read the settings from defaults, a TOML file, variables and options.

    Relative paths in the file are relative to the file. Unknown variables that begin with
    ``MODELD_`` are errors. Raises ConfigError if the file cannot be read, or with all invalid keys
    and values.
    """
    found = _Found()
    if path is not None:
        _read_file(Path(path), found)
    found.where = "environment"
    _read_environment(environment or {}, found)
    found.where = "options"
    for given in options:
        found.spelled(given.key, given.text, f"option {given.option}", given.option)
    found.where = str(path or "settings")
    cameras = _cameras(found)
    found.refuse()
    values = found.values
    realtime = {key[9:]: values.pop(key) for key in list(values) if key.startswith("realtime.")}
    plain = {key: value for key, value in values.items() if "." not in key}
    try:
        config = Config(**plain, cameras=cameras, realtime=RealtimeConfig(**realtime))
    except ConfigError as error:  # settings that contradict each other
        raise ConfigError(f"{found.where}: {error}") from error
    return LoadedSettings(config, {**dict.fromkeys(SETTINGS, "default"), **found.sources})


def changed_settings(config: Config) -> str:
    """Return the settings that are not their defaults, as ``key = value, ...``, for the log."""
    return differing(config.values(), SETTINGS)


@dataclass(slots=True)
class _Found:
    """The values read so far, and the problems found."""

    where: str = ""  # the source being read, for messages
    values: dict[str, Any] = field(default_factory=dict)  # by key
    sources: dict[str, str] = field(default_factory=dict)  # key -> as in LoadedSettings
    places: dict[str, str] = field(default_factory=dict)  # key -> the `where` that set it
    problems: dict[str, list[str]] = field(default_factory=dict)  # by `where`
    refused: set[str] = field(default_factory=set)  # keys with invalid values

    def wrong(self, problem: str, key: str = "") -> None:
        """Record a problem in the current source, and the key of the invalid value."""
        self.problems.setdefault(self.where, []).append(problem)
        self.refused.add(key)

    def take(self, key: str, value: Any, source: str) -> None:
        """Set a checked value, which replaces that of earlier sources."""
        for covered in SETTINGS[key].doc.covers:
            if self.places.get(covered) != self.where:
                self.values.pop(covered, None)
                self.sources.pop(covered, None)
        self.places[key] = self.where
        self.values[key] = value
        self.sources[key] = source

    def spelled(self, key: str, text: str, source: str, name: str) -> None:
        """Parse and set the text of the variable or option `name`."""
        if key not in SETTINGS:
            self.wrong(f"unknown key {key}{suggestion(key, SETTINGS)}")
            return
        try:
            self.take(key, SETTINGS[key].parse(text), source)
        except ValueError as error:
            self.wrong(f"{name}: {error}", key)

    def refuse(self) -> None:
        """Raise ConfigError with all problems, if there are any."""
        if self.problems:
            raise ConfigError(
                "; ".join(f"{where}: {'; '.join(all_)}" for where, all_ in self.problems.items())
            )


def _read_file(path: Path, found: _Found) -> None:
    try:
        content = tomllib.loads(read_given(path, MAX_FILE_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from error
    found.where = str(path)
    for key, value in _flat(content):
        if key not in SETTINGS:
            found.wrong(_unknown(key, value))
            continue
        try:
            good = SETTINGS[key].convert(value)
        except ValueError as error:
            found.wrong(f"{key}: {error}", key)
            continue
        found.take(key, path.parent / good if isinstance(good, Path) else good, f"file {path}")


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        known = any(t == key or t.startswith(f"{key}.") for t in _TABLES)
        if isinstance(value, dict) and known:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _unknown(key: str, value: Any) -> str:
    tables = [table for table in _TABLES if table == key or table.startswith(f"{key}.")]
    if tables:
        expected = " and ".join(f"[{table}]" for table in tables)
        return f"{key}: expected {expected}, got {value!r:.80}"
    if isinstance(value, dict):
        return f"unknown table [{key}]{suggestion(key, _TABLES)}"
    # The key may belong in another table.
    near = suggestion(key, SETTINGS)
    last = key.rpartition(".")[2]
    elsewhere = [known for known in SETTINGS if known.rpartition(".")[2] == last]
    return f"unknown key {key}{f'; did you mean {elsewhere[0]}?' if elsewhere else near}"


def _read_environment(environment: Mapping[str, str], found: _Found) -> None:
    for key, name in _BY_STACK.items():
        if name in environment and key not in found.values:
            found.sources[key] = f"variable {name}"
    for name, text in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES or name.startswith(TEST_PREFIX):
            continue
        if name not in _BY_VARIABLE:
            near = suggestion(name, (*_BY_VARIABLE, *OTHER_VARIABLES), PREFIX)
            found.wrong(f"unknown variable {name}{near}")
        elif text:  # an empty variable counts as unset
            found.spelled(_BY_VARIABLE[name], text, f"variable {name}", name)


def _cameras(found: _Found) -> DeviceCameras | None:
    """Return the configured cameras, whose keys can come from different sources."""
    cameras: dict[str, Camera] = {}
    for name in ("road", "wide"):
        keys = [key for key in SETTINGS if key.startswith(f"camera.{name}.")]
        given = {key.rpartition(".")[2]: found.values[key] for key in keys if key in found.values}
        needed = [key for key in keys if not key.endswith(".focal_y_px")]
        missing = [key for key in needed if key not in found.values]
        if found.refused.intersection(keys):
            continue  # reported already
        if given and missing:
            found.wrong(f"[camera.{name}]: missing {', '.join(key[12:] for key in missing)}")
        elif given:
            cameras[name] = Camera(**given)
    if "wide" in cameras and "road" not in cameras:
        found.wrong("[camera.wide]: expected [camera.road], too")
        return None
    return DeviceCameras(cameras["road"], cameras.get("wide")) if cameras else None


# --- The sample configuration file: every setting with its description, as comments -----------

_WIDTH: Final = 96
_HEAD: Final = """\
# Settings of modeld, in TOML. Lines without "#" in front are in force; the others show the default,
# or an example where there is none. Paths are relative to this file. Environment variables
# (MODELD_BUS_ADDRESS for bus_address, MODELD_REALTIME_PRIORITY for priority in [realtime]) win
# over this file, options of `modeld run` over both. `modeld config` shows what holds, and why.
"""


def sample_config(values: Mapping[str, Any] | None = None) -> str:
    """Return a complete sample file. Settings in `values`, by key, are set; others are comments."""
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
    """Return the permitted values in parentheses, "" if the setting has no choices or bounds."""
    said = setting.doc.choices or setting.doc.bounds
    return f"({setting.expected})" if said else ""


def _line(name: str, setting: Setting, value: Any) -> str:
    if value is not None:
        return f"{name} = {shown(value)}\n"
    usual = setting.doc.example if setting.default is None else setting.default
    return f"# {name} = {shown(usual)}\n"
