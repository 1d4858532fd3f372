"""Show the health of the daemons on a bus: driving, and driver monitoring if it runs.

Each daemon reports once a second; the command waits up to --timeout seconds for a report. Exit code
0: each daemon that reported publishes valid messages, or waits for cameras or for the car, with its
own model and without a fault in the last ten seconds. Exit code 1: one does not, or none reported.

With --config, the settings of a daemon name the bus, and the model selected in the store is shown
next to the running one: after a select they differ until the daemon reloads.

With --watch the command repeats until it is stopped, and shows stage times of the last ten seconds.
With --json each report is one object.

Example:
  modeld status
  modeld status --bus ipc:///run/modeld --watch
  modeld status --config /etc/modeld/config.toml
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from modeld.errors import StoreError
from modeld.service.config import Config
from modeld.service.config_sources import load_config
from modeld.startup import StopSignals
from modeld.store.model_store import ModelStore
from tools.errors import ToolError
from tools.lib.json_output import print_json
from tools.lib.options import MOST_S, above
from tools.service.health import (
    SERVICES,
    Health,
    HealthEar,
    Painter,
    health_text,
    problems_of,
    quantile_ms,
    stages_since,
)
from tools.service.options import add_bus_arguments, addresses_of, open_bus, take_bus_of
from tools.service.running_models import comparison

logger = logging.getLogger(__name__)

# Number of messages to keep for the stage times of the last ten seconds: 10 intervals of 1 s.
KEPT = 11
CLEAR = "\x1b[H\x1b[2J"
QUANTILES = {"p50": 0.5, "p99": 0.99}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_bus_arguments(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="TOML",
        help="settings file of the daemon, for its bus (options win) and its store",
    )
    parser.add_argument("--watch", action="store_true", help="repeat once a second")
    parser.add_argument(
        "--timeout",
        type=above("--timeout", 0, MOST_S),
        default=2.5,
        metavar="S",
        help="longest wait for a report (2.5)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the health of the daemons; return 0 if all are healthy, else 1."""
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        config = None
        if args.config is not None:
            config = load_config(args.config, os.environ, [])
            take_bus_of(args, config)
        transport = open_bus(args)
        stack.callback(transport.close)
        ear = HealthEar(transport, stop.event)
        show = _Show(args, config)
        if args.watch:
            return _watch(ear, show, stop, args)
        heard = ear.listen(args.timeout)
        if stop.event.is_set():
            return stop.exit_code
        if not heard:
            raise ToolError(_silence(args))
        return show.print(heard, {})


def _watch(ear: HealthEar, show: _Show, stop: StopSignals, args: argparse.Namespace) -> int:
    kept: dict[str, deque[Health]] = {}
    heard: dict[str, Health] = {}
    while not stop.event.is_set():
        # After the first pass, wait only for the daemons that reported.
        heard = ear.listen(args.timeout, heard.keys() or SERVICES)
        if not heard and not stop.event.is_set():
            kept.clear()
            logger.warning(_silence(args))
        for name, health in heard.items():
            kept.setdefault(name, deque(maxlen=KEPT)).append(health)
        if heard:
            show.print(heard, {name: old[0] for name, old in kept.items() if len(old) > 1})
    return stop.exit_code


def _silence(args: argparse.Namespace) -> str:
    return (
        f"bus {addresses_of(args).publish}: expected a message of {' or '.join(SERVICES)} within "
        f"{args.timeout:g} s, found none; is the daemon running on this address?"
    )


class _Show:
    """Prints the reports of the daemons."""

    def __init__(self, args: argparse.Namespace, config: Config | None) -> None:
        self._as_json = args.json
        self._store: ModelStore | None = None
        if config is not None and config.model is None and config.models_dir is not None:
            self._store = ModelStore(config.models_dir)
        is_terminal = sys.stdout.isatty()
        self._clear = CLEAR if args.watch and is_terminal else ""
        self._painter = Painter(is_coloured=is_terminal)

    def print(self, heard: dict[str, Health], earlier: dict[str, Health]) -> int:
        """Print the state of each daemon; return 0 if all are healthy, else 1."""
        problems = {name: problems_of(health) for name, health in heard.items()}
        models = self._models(heard)
        if self._as_json:
            print_json(
                {
                    "healthy": not any(problems.values()),
                    "daemons": {
                        name: {
                            "problems": problems[name],
                            "stageTimes": _stage_times(health, earlier.get(name)),
                            "models": models.get(name),
                            "health": health,
                        }
                        for name, health in heard.items()
                    },
                }
            )
        else:
            texts = [
                health_text(
                    name, health, problems[name], earlier.get(name), self._painter, models.get(name)
                )
                for name, health in heard.items()
            ]
            print(self._clear + "\n\n".join(texts), flush=True)
        return int(any(problems.values()))

    def _models(self, heard: dict[str, Health]) -> dict[str, str]:
        """Return a text about the selected and the running model, or an error, by service."""
        store = self._store
        if store is None:
            return {}
        try:
            selection = store.selection()
        except StoreError as error:
            return dict.fromkeys(heard, str(error))
        return {name: comparison(store, selection, health) for name, health in heard.items()}


def _stage_times(health: Health, earlier: Health | None) -> dict[str, Any]:
    """Return the quantiles of each stage's time, in milliseconds."""
    bounds = health["stageBounds"]
    return {
        stage["name"]: {
            name: quantile_ms(bounds, stage["counts"], share) for name, share in QUANTILES.items()
        }
        for stage in stages_since(health, earlier)
    }


if __name__ == "__main__":
    from tools.cli import main

    sys.exit(main(["status", *sys.argv[1:]]))
