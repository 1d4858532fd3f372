"""The timing gate's measurements at acceptance: one JSON file beside the drives'.

Times belong to a program and a device, not to a drive. One file for each model and class of
devices; in it one measurement for each device and entry, since a ratio holds for one device only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from runtime.files.user_file import read_given, whole_file
from tools.errors import ToolError
from tools.lib.json_output import json_text
from tools.regress.errors import ReferenceFormatError
from tools.regress.judge.reference import SHORT
from tools.regress.time.kernel_times import LaunchTime
from tools.regress.time.timing import Interval, StoredTiming, TimingResult

# 1 held no frames and no launches: what it measured were random inputs.
FORMAT: Final = 2
ENDING: Final = ".timing.json"
MAX_BYTES: Final = 16 << 20


class TimingReferences:
    """The measurements of one model on one class of devices.

    `directory`: of the references. `model`: hash of the models. `device_class`: see
    `environment.device_class`.

    Raises:
        ReferenceFormatError: the file is damaged or of another format.
    """

    def __init__(self, directory: Path, model: str, device_class: str) -> None:
        self.path = directory / f"{model[:SHORT]}.{device_class}{ENDING}"
        self._model, self._device_class = model, device_class
        self._found: dict[str, dict[str, Any]] = self._read()

    def find(self, device: str, entry: str) -> StoredTiming | None:
        """Return what was measured on a device, None where nothing was."""
        kept = self._found.get(device, {}).get(entry)
        if kept is None:
            return None
        try:
            read = {
                "ratio": _interval(kept["ratio"]),
                "frames": {name: _interval(value) for name, value in kept["frames"].items()},
                "launches": tuple(
                    LaunchTime(str(kernel), tuple(nodes), float(ratio))
                    for kernel, nodes, ratio in kept["launches"]
                ),
            }
            return StoredTiming(**{**kept, **read})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    def devices(self) -> list[str]:
        """Return the devices that something was measured on."""
        return sorted(self._found)

    def write(self, entry: str, result: TimingResult, provenance: Mapping[str, str]) -> None:
        """Keep a measurement beside those of other devices and entries; the file stays whole.

        Raises:
            ToolError: it cannot be written.
        """
        stored = StoredTiming(
            result.ratio,
            result.clock,
            result.model_ms,
            result.waiting,
            dict(provenance),
            {frame.name: frame.ratio for frame in result.frames},
            result.kernels.launches if result.kernels is not None else (),
        )
        self._found.setdefault(result.device, {})[entry] = asdict(stored)
        content = {
            "format": FORMAT,
            "model": self._model,
            "device_class": self._device_class,
            "devices": self._found,
        }
        text = json_text(content, indent=1) + "\n"
        try:
            with whole_file(self.path) as file:
                file.write(text.encode())
        except OSError as error:
            raise ToolError(
                f"{self.path}: the timing reference cannot be written: {error.strerror or error}; "
                "what was there before is as it was"
            ) from error

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(read_given(self.path, MAX_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        if not isinstance(content, dict) or not isinstance(content.get("devices"), dict):
            raise self._damaged("no object with devices")
        if content.get("format") != FORMAT:
            raise ReferenceFormatError(
                f"{self.path}: expected timings of format {FORMAT}, found "
                f"{content.get('format')!r}; delete it and rewrite it with --update"
            )
        devices: dict[str, dict[str, Any]] = content["devices"]
        return devices

    def _damaged(self, how: str) -> ReferenceFormatError:
        return ReferenceFormatError(
            f"{self.path}: expected timings of references, found {how}; get it again from the "
            "repository, or delete it and rewrite it with --update"
        )


def _interval(kept: Mapping[str, Any]) -> Interval:
    return Interval(**{**kept, "samples": tuple(kept["samples"])})
