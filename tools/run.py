"""Run the daemon: frames and vehicle state in, modelV2, drivingModelData and cameraOdometry out.

With a driver monitoring artifact it takes the driver camera's frames, and driverStateV2 comes out;
run it beside the other. The driving daemon waits for a camera server's shared-memory frames and for
carParams, on the bus or as a parameter of the stack; --demo does without carParams. SIGTERM stops
it cleanly (exit code 0), SIGINT too (130). Options win over the TOML file of --config, which may
hold: model demo device bus_address stack port_hash params_dir camera_server frame_timeout_ms
lat_smooth_s long_smooth_s send_raw_predictions, and tables [camera.road] and [camera.wide] with
width, height and focal_px.

Example:
  modeld run --model driving.pkl --demo --bus ipc:///run/modeld
  modeld run --model dmonitoring.pkl --bus ipc:///run/modeld
"""

from __future__ import annotations

import argparse
from pathlib import Path

from modeld import process
from modeld.config import load_config
from tools.lib.bus_options import add_stack_arguments
from tools.lib.json_output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--model", type=Path, help="driving or driver monitoring artifact; may stand in the file"
    )
    parser.add_argument("--demo", action="store_true", help="a built-in car, without carParams")
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings file")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument(
        "--bus", metavar="ADDRESS", help="tcp://HOST or ipc:///DIRECTORY (tcp://127.0.0.1)"
    )
    add_stack_arguments(parser)
    parser.add_argument(
        "--params",
        type=Path,
        metavar="DIRECTORY",
        help="parameters of the stack, for CarParams (by its rule)",
    )
    parser.add_argument("--camera-server", metavar="NAME", help="whose frames to take (camerad)")


def run(args: argparse.Namespace) -> int:
    """Run until a signal; return 0 after SIGTERM, 130 after SIGINT."""
    overrides = {
        "model": args.model,
        "demo": args.demo or None,
        "device": args.device,
        "bus_address": args.bus,
        "stack": args.stack,
        "port_hash": args.port_hash,
        "params_dir": args.params,
        "camera_server": args.camera_server,
    }
    exit_code = process.run(load_config(args.config, overrides))
    if args.json:
        print_json({"exit_code": exit_code})
    return exit_code
