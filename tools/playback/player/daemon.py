"""Prepares a drive for a daemon: its car, its cameras, and the commands that start the daemon.

A video has no information about its car, but a daemon waits until it knows one. A video's camera is
not that of a known device either, so its size and focal length are passed as settings.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from cereal.schema import new_event
from modeld.errors import CameraConfigError
from modeld.startup import DRIVER_STREAM, ROAD_STREAM, WIDE_STREAM
from modeld.vehicle.cameras import DeviceCameras, find_readouts
from modeld.vehicle.inputs import DEMO_CAR
from tools.drives.drive import DriveInfo
from tools.messages.drive_messages import START_NS
from tools.service.options import addresses_of

MODEL: Final = "driving.pkl"
MONITORING: Final = "dmonitoring.pkl"
# Options that the player and a daemon share, without a default of their own.
_SHARED: Final = ("stack", "port_hash", "bus_keys")
_NO_OPTION: Final = {"--bus": "tcp://127.0.0.1", "--camera-server": "camerad"}


def with_car(info: DriveInfo) -> DriveInfo:
    """Return the drive with a car: its own, or else the car of `modeld run --demo`."""
    if info.car_params is not None:
        return info
    event = new_event("carParams", mono_time_ns=START_NS, valid=True)
    event.carParams.carFingerprint = DEMO_CAR.name
    event.carParams.steerActuatorDelay = DEMO_CAR.steer_actuator_delay_s
    event.carParams.longitudinalActuatorDelay = DEMO_CAR.longitudinal_actuator_delay_s
    return replace(info, car_params=event.to_bytes())


def cameras_of(info: DriveInfo) -> DeviceCameras | None:
    """Return the cameras to pass to the daemon; None if it determines them itself.

    If a recording lacks its device's wide camera, only the road camera is passed, because otherwise
    the daemon would wait for the other one.
    """
    form = info.formats.get(ROAD_STREAM)
    if info.cameras is not None or form is None or WIDE_STREAM in info.formats:
        return info.cameras
    try:
        readouts = find_readouts(info.mounting.device_type, info.mounting.sensor)
    except CameraConfigError:
        return None
    sizes = {(one.road.width, one.road.height): one.road for one in readouts if one.wide}
    road = sizes.get((form.width, form.height))
    return None if road is None else DeviceCameras(road, None)


def camera_options(info: DriveInfo) -> list[str]:
    """Return the options of `modeld run` that describe a drive's cameras."""
    return [word for setting in _camera_settings(cameras_of(info)) for word in ("--set", setting)]


def _camera_settings(cameras: DeviceCameras | None) -> Iterator[str]:
    for name in ("road", "wide"):
        camera = None if cameras is None else getattr(cameras, name)
        if camera is not None:
            yield f"camera.{name}.width={camera.width}"
            yield f"camera.{name}.height={camera.height}"
            yield f"camera.{name}.focal_px={float(camera.focal_px)!r}"
            if camera.focal_y_px:
                yield f"camera.{name}.focal_y_px={float(camera.focal_y_px)!r}"


def daemon_commands(args: argparse.Namespace, info: DriveInfo) -> list[str]:
    """Return the commands that start the daemons for a drive, one for each kind of camera.

    `args`: arguments of a command with `add_bus_arguments` and ``--camera-server``.
    """
    addresses = addresses_of(args)
    given = {"--bus": addresses.publish, "--camera-server": args.camera_server}
    if addresses.publish != addresses.subscribe:
        given |= {"--publish": addresses.publish, "--subscribe": addresses.subscribe}
        del given["--bus"]
    given |= {f"--{name.replace('_', '-')}": getattr(args, name) for name in _SHARED}
    where = [
        word
        for option, value in given.items()
        if value is not None and value != _NO_OPTION.get(option)
        for word in (option, str(value))
    ]
    commands = []
    if ROAD_STREAM in info.formats or WIDE_STREAM in info.formats:
        commands.append([MODEL, *where, *camera_options(info)])
    if DRIVER_STREAM in info.formats:
        commands.append([MONITORING, *where])
    return [shlex.join(["modeld", "run", "--model", *words]) for words in commands]
