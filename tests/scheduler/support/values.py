"""Random values of a test: drawn from a generator that starts anew with each test."""

import numpy as np

from scheduler.tensor.tensor import Tensor

_running: list[np.random.Generator] = []


def start() -> None:
    _running[:] = [np.random.default_rng(7)]


def stop() -> None:
    """End a test: what is drawn at import would depend on which modules were imported before."""
    _running.clear()


def rng() -> np.random.Generator:
    """Return the generator of the running test."""
    assert _running, "values are drawn while a test runs, not at import"
    return _running[0]


class Weights:
    """Weights of a network, the same ones each time it is built."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(11)

    def __call__(self, *shape: int) -> Tensor:
        """Return the next weight."""
        return Tensor.weight((self._rng.standard_normal(shape) * 0.1).astype(np.float32))
