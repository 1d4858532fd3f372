"""Example models are known by name and seed, so their bytes should not change unseen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tests.support.built import example_models, interface_models
from tools.make_model import MODELS

# One of each build: all of them take many seconds to make.
INTERFACES = ("supercombo-0.9.7", "split-2025", "on-off-2026-action", "dmonitoring-2025")


def test_bytes_are_the_kept_ones(golden: Callable[[str, str], None]) -> None:
    paths = {name: [path] for name, path in example_models(*MODELS).items()}
    for interface in INTERFACES:
        paths[interface] = interface_models(interface)
    lines = [
        f"{name}  {path.stem} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}\n"
        for name, files in paths.items()
        for path in files
    ]
    golden("example_models", "".join(lines))
