"""Show the parameters of the stack that concern a driving model, in words.

The directory is the one that the daemon would read with the same settings: --params or the file of
--config, else the stack's default directory with PARAMS_ROOT and OPENPILOT_PREFIX. It is only read.
Exit code 1: the directory does not exist, or the daemon would reject a value in it.

Example:
  modeld params
  modeld params --config /data/modeld/config.toml --json
  OPENPILOT_PREFIX=bench modeld params --stack openpilot-2026
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cereal.stacks import STACKS
from modeld.errors import ParameterError
from modeld.service.config_sources import Given, load_config
from modeld.vehicle.inputs import CarParameters
from modeld.vehicle.model_params import (
    BUNDLE,
    CALIBRATION,
    CAMERA_OFFSET,
    CAR,
    CAR_BEFORE,
    DELAY,
    IS_RHD,
    OWN_DELAY,
    PARAMETERS,
    USES_OWN_DELAY,
    ModelBundle,
    StoredCalibration,
    StoredDelay,
)
from modeld.vehicle.params import Params
from tools.errors import ToolError
from tools.lib.json_output import print_json
from tools.lib.terminal import format_table, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings file of the daemon")
    parser.add_argument("--params", type=Path, metavar="DIRECTORY", help="the parameters")
    parser.add_argument(
        "--stack", choices=STACKS, metavar="NAME", help=f"by whose rule: {', '.join(STACKS)}"
    )


def run(args: argparse.Namespace) -> int:
    """Print the parameters; return 1 if one of them cannot be used, else 0."""
    options = {"params_dir": (args.params, "--params"), "stack": (args.stack, "--stack")}
    given = [
        Given(key, str(value), option)
        for key, (value, option) in options.items()
        if value is not None
    ]
    config = load_config(args.config, os.environ, given)
    params = Params(config.parameters())
    if not os.path.isdir(params.directory):  # noqa: PTH112 - of any name, too long ones as well
        raise ToolError(
            f"{params.directory}: expected the parameters of the stack, found no directory; start "
            "the stack once, or name another with --params"
        )
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for parameter in PARAMETERS:
        try:
            values[parameter.key] = params.value(parameter)
        except ParameterError as error:
            problems[parameter.key] = str(error)
    texts = {
        parameter.key: problems.get(parameter.key) or _text(parameter.key, values[parameter.key])
        for parameter in PARAMETERS
    }
    if args.json:
        print_json(
            {
                "directory": str(params.directory),
                "stack": config.stack,
                "parameters": {
                    key: {
                        "value": _plain(values.get(key)),
                        "text": text,
                        "problem": problems.get(key),
                    }
                    for key, text in texts.items()
                },
            }
        )
    else:
        print(f"{params.directory}, of {config.stack}")
        rows = [(key, ("NOT USABLE: " if key in problems else "") + t) for key, t in texts.items()]
        print(format_table(("parameter", "value"), rows))
    return int(bool(problems))


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]  # no class


def _text(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) and key not in _WORDS:
        return "yes" if value else "no"
    return printable(_WORDS.get(key, str)(value))


def _car(car: CarParameters) -> str:
    delays = (car.steer_actuator_delay_s, car.longitudinal_actuator_delay_s)
    text = "{}, actuators: steering {:.2g} s, longitudinal {:.2g} s".format(car.name, *delays)
    return "; ".join((text, *(reason.text for reason in car.reasons)))


def _calibration(found: StoredCalibration) -> str:
    roll, pitch, yaw = map(math.degrees, found.rpy_rad)
    angles = f"roll {roll:.2f}, pitch {pitch:.2f}, yaw {yaw:.2f} degrees"
    return f"{found.status}, {angles}, camera {found.height_m:.2f} m above the road"


def _delay(found: StoredDelay) -> str:
    return f"{found.lateral_s:.3g} s from steering command to curvature, {found.status}"


def _bundle(found: ModelBundle) -> str:
    parts = [f"{found.name}, generation {found.generation}", found.runner, found.ref]
    parts += [f"{key} {value}" for key, value in found.overrides.items()]
    return ", ".join(part for part in parts if part)


_WORDS: Mapping[str, Callable[[Any], str]] = {
    CAR.key: _car,
    CAR_BEFORE.key: _car,
    CALIBRATION.key: _calibration,
    DELAY.key: _delay,
    IS_RHD.key: lambda is_rhd: f"the driver sits on the {'right' if is_rhd else 'left'}",
    USES_OWN_DELAY.key: lambda on: f"the {'user' if on else 'stack'} sets the lateral delay",
    OWN_DELAY.key: lambda delay_s: f"{delay_s:g} s",
    CAMERA_OFFSET.key: lambda offset_m: f"{offset_m:g} m",
    BUNDLE.key: _bundle,
}
