"""Networks that are too large are refused before anything is trained, and written by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tools.training.with_torch.exported import Networks, as_trained
from tools.errors import TrainingError
from tools.training import checkpoint, export
from tools.training.export import MOST_BYTES, MOST_FLOP, MOST_PARAMETERS, write_models
from tools.training.limits import check_sizes
from tools.training.onnx_weights import EightBitGraph
from tools.training.options import TrainingOptions
from tools.training.training import Training


def test_sizes_are_known_before_anything_is_learnt(tmp_path: Path, networks: Networks) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    known = check_sizes()
    # Draws are those that they would have been.
    assert torch.equal(torch.random.get_rng_state(), before)
    written = write_models(tmp_path, as_trained(networks))
    assert (known.parameters, known.flop) == (written.parameters, written.flop)
    # Only the name of the training differs.
    assert abs(known.bytes - written.bytes) < 100
    assert known.parameters <= MOST_PARAMETERS
    assert known.flop <= MOST_FLOP
    assert known.bytes <= MOST_BYTES


def test_eight_bits_have_as_many_parameters(tmp_path: Path, networks: Networks) -> None:
    written = write_models(tmp_path, as_trained(networks), EightBitGraph)
    assert written.parameters == check_sizes().parameters


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ("MOST_PARAMETERS", "at most 1000 parameters, found"),
        ("MOST_FLOP", "at most 1000 floating-point operations a frame, found"),
        ("MOST_BYTES", "at most 1000 bytes of both files, found"),
    ],
)
def test_what_is_too_large_is_refused(
    limit: str, found: str, tmp_path: Path, networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, limit, 1000)
    with pytest.raises(TrainingError, match=found) as caught:
        write_models(tmp_path / "models", as_trained(networks))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "models").exists()
    # Before anything of a training is written.
    directory = tmp_path / "training"
    with pytest.raises(TrainingError, match=found):
        Training(TrainingOptions(directory), resume=False, show=False)
    assert not (directory / checkpoint.NAME).exists()
    assert not directory.exists()
