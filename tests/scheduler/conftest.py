"""Kernels built by the tests stay away from the user's cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("MODELD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
