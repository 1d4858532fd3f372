"""Run the daemon: frames and vehicle state in, modelV2, drivingModelData and cameraOdometry out.

With a driver monitoring artifact it reads the driver camera's frames and publishes driverStateV2;
run it next to the driving daemon. The driving daemon waits for a camera server's shared-memory
frames and for carParams, from the bus or from a parameter of the stack; --demo needs no carParams.
SIGTERM stops the daemon cleanly (exit code 0), and so does SIGINT (130).

Each setting can be in the TOML file of --config, in an environment variable (MODELD_ and the
setting in capitals: MODELD_BUS_ADDRESS, MODELD_REALTIME_PRIORITY), or in an option, here or with
--set. Options take precedence over variables, and variables over the file. modeld config --sample
prints a file with all settings; modeld config prints the ones in force.

Logs go to stderr, one line per record. -q logs errors only, -v everything, -vv with tracebacks.

Example:
  modeld run --model driving.pkl --demo --bus ipc:///run/modeld
  modeld run --model dmonitoring.pkl --bus ipc:///run/modeld
  modeld run --config /etc/modeld/config.toml --log-format json --set realtime.priority=54
  MODELD_MODEL=driving.pkl MODELD_REALTIME_LOCK_MEMORY=1 modeld run
"""

from __future__ import annotations

import argparse
import logging
import os

from modeld import process
from modeld.service.config import Config
from modeld.service.config_sources import load_config
from modeld.service.service_log import ServiceLog
from tools.lib.json_output import print_json
from tools.service.options import add_setting_arguments, settings_given

logger = logging.getLogger("modeld")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_setting_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run until a signal; return 0 after SIGTERM, 130 after SIGINT, or an error's exit code."""

    def read() -> Config:
        return load_config(args.config, os.environ, settings_given(args))

    config = read()
    try:
        exit_code = process.run(config, read)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        # Log the error like other records of the daemon: in its format, without blocking.
        with ServiceLog(format=config.log_format):
            logger.error("%s", error)  # noqa: TRY400 -- the message is for a user
        return code
    if args.json:
        print_json({"exit_code": exit_code})
    return exit_code
