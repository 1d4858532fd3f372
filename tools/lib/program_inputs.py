"""Inputs of a program that is run by hand: arrays of a file, or random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.lib.frame_inputs import make_frame_inputs
from tools.lib.npz import read_npz

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from runtime import TensorSpec


def inputs_for(
    specs: Sequence[TensorSpec], path: Path | None, seed: int
) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a file, or random ones where there is none.

    Args:
        specs: the inputs of the entry.
        path: of an .npz with one array per input, by name; None: random inputs.
        seed: of the random inputs.

    Raises:
        UsageError: the file cannot be read.
    """
    return make_inputs(specs, seed) if path is None else read_npz(path)


def make_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, NDArray[Any]]:
    """Return inputs for timing: any values will do that do not change the amount of work.

    Args:
        specs: what the entry takes.
        seed: of the generator; equal seeds give equal inputs.

    Returns:
        Frames of cameras: see `make_frame_inputs`; other uint8: uniform bytes; other floats:
        normal noise; other integers and booleans: 0 and 1, which are valid indices nearly
        everywhere.
    """
    generator = np.random.default_rng(seed)
    inputs = make_frame_inputs(specs, generator)
    for spec in specs:
        value: NDArray[Any]
        if spec.name in inputs:
            continue
        if spec.dtype == np.uint8:
            value = generator.integers(0, 256, spec.shape)
        elif spec.dtype.kind == "f":
            value = generator.standard_normal(spec.shape)
        else:
            value = generator.integers(0, 2, spec.shape)
        inputs[spec.name] = np.asarray(value, spec.dtype, order="C").reshape(spec.shape)
    return inputs
