"""Small models of each build are known by name and seed: their bytes should not change unseen."""

import hashlib
from collections.abc import Callable

from tests.support.built import interface_models

# One of each build: all of them take many seconds to make.
INTERFACES = ("supercombo-0.9.7", "split-2025", "on-off-2026-action", "dmonitoring-2025")


def test_bytes_are_the_kept_ones(golden: Callable[[str, str], None]) -> None:
    paths = {interface: interface_models(interface) for interface in INTERFACES}
    lines = [
        f"{name}  {path.stem} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}\n"
        for name, files in paths.items()
        for path in files
    ]
    golden("interface_models", "".join(lines))
