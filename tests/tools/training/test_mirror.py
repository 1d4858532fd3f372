"""A mirrored sample is what the mirrored world would have given."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tools.training.heads import PLAN, VISION_HEADS, VISION_TARGETS, size_of
from tools.training.mirror import mirror_desires, mirror_images, mirror_target


def packed(luma: NDArray[np.float64], chroma: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a picture as the model's six channels: luma (256, 512), chroma (128, 256)."""
    y, c = luma.astype(np.uint8), chroma.astype(np.uint8)
    return np.stack([y[0::2, 0::2], y[1::2, 0::2], y[0::2, 1::2], y[1::2, 1::2], c, c])


def bump(centre: float, columns: NDArray[np.float64]) -> NDArray[np.float64]:
    return 200.0 * np.exp(-(((columns - centre) / 30.0) ** 2))


def test_mirrored_picture_is_turned_about_column_256() -> None:
    columns = np.arange(512.0) + np.zeros((256, 1))
    # A chroma sample lies half way between two luma columns.
    chroma_columns = 2.0 * np.arange(256.0) + 0.5 + np.zeros((128, 1))
    for centre in (100.0, 255.0, 256.0, 300.5):
        images = packed(bump(centre, columns), bump(centre, chroma_columns))
        wanted = packed(bump(512.0 - centre, columns), bump(512.0 - centre, chroma_columns))
        found = mirror_images(images[None])[0]
        # The first column has no partner.
        difference = np.abs(found[..., 1:].astype(int) - wanted[..., 1:].astype(int))
        assert difference[:4].max() <= 1
        assert difference[4:].max() <= 2


def test_mirrored_twice_is_the_sample() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=(3, size_of(VISION_TARGETS))).astype(np.float32)
    twice = mirror_target(VISION_TARGETS, mirror_target(VISION_TARGETS, target))
    np.testing.assert_array_equal(twice, target)


def test_sides_change_and_distances_ahead_do_not() -> None:
    target = np.zeros(PLAN.size, np.float32)
    plan = target.reshape(33, 15)
    plan[:] = np.arange(1.0, 16.0)
    found = mirror_target((PLAN,), target).reshape(33, 15)[0]
    # x y z of position, velocity, acceleration; roll pitch yaw and their rates.
    signs = [1, -1, 1] * 3 + [-1, 1, -1] * 2
    assert found.tolist() == [s * v for s, v in zip(signs, range(1, 16), strict=True)]


def test_lines_change_places_and_sides() -> None:
    head = next(head for head in VISION_HEADS if head.name == "lane_lines")
    lines = np.zeros((4, 33, 2), np.float32)
    lines[..., 0] = np.array([-5.4, -1.8, 1.7, 5.5])[:, None]
    lines[..., 1] = 1.2
    found = mirror_target((head,), lines.reshape(-1)).reshape(4, 33, 2)
    np.testing.assert_allclose(found[:, 7, 0], [-5.5, -1.7, 1.8, 5.4], rtol=1e-6)
    np.testing.assert_allclose(found[..., 1], 1.2, rtol=1e-6)


def test_desires_change_sides() -> None:
    desires = np.eye(8, dtype=np.float32)
    assert mirror_desires(desires).argmax(axis=1).tolist() == [0, 2, 1, 4, 3, 6, 5, 7]


def test_blinkers_change_sides_and_pedals_do_not() -> None:
    head = next(head for head in VISION_HEADS if head.name == "meta")
    meta = np.arange(55, dtype=np.float32)
    found = mirror_target((head,), meta)
    assert found[:33].tolist() == meta[:33].tolist()
    assert found[33:37].tolist() == [34, 33, 35, 36]
    assert found[53:55].tolist() == [54, 53]
