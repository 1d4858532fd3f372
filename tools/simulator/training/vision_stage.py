"""Trains the vision network on rendered samples: lanes, leads, motion, and a plan.

Each step draws a batch from the replay buffer, mirrors some samples, varies brightness and noise,
and updates the weights. `answers` returns the outputs of a network for given samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.lib.processes import Crew
from tools.simulator.training.heads import (
    VISION_TARGETS,
    Head,
    Scaling,
    Singles,
    measure,
    mirror_images,
    mirror_target,
)
from tools.simulator.training.losses import hint_loss, total_loss
from tools.simulator.training.machine import Turns
from tools.simulator.training.networks import optimizers
from tools.simulator.training.networks.architecture import MIDDLE, SPREAD, VIEW_CHANNELS
from tools.simulator.training.networks.networks import Vision, as_input, fast_dtype
from tools.simulator.training.networks.optimizers import Average
from tools.simulator.training.options import TrainingOptions
from tools.simulator.training.records import RESUME, Records, Watch
from tools.simulator.training.samples.replay import Batch, Replay, Sample

# Minimum number of samples before the first step, from which the scaling is measured.
FIRST_SAMPLES = 768
WEIGHT_DECAY = 0.02
CLIP = 1.0
# Share of the time in which the learning rate rises to its highest value.
_WARM_UP = 0.03
_LAST_RATE = 0.01
# Steps between two rows of the history, and seconds between two checkpoints.
_ROW_STEPS = 20
CHECKPOINT_S = 150.0
# Largest random change of contrast and brightness, and deviation of added noise, in units of the
# input (1 is 64 of 255). Cameras vary more than the renderer does.
_GAIN, _SHIFT, _NOISE = 0.15, 0.15, 0.03
STAGE = "vision"
_JUDGED_AT_ONCE = 16

Tick = Callable[[float, str], None]
"""Called with the completed share of the stage, and a progress text."""


@dataclass(slots=True)
class VisionState:
    """The state of the vision stage between two steps.

    Attributes:
        network: network that is trained.
        optimizers: one for hidden layers, and one for all other weights.
        average: average of the weights, which is evaluated and exported.
        rng: generator for drawing and disturbing samples.
        scaling: scaling of the targets; None before the first step.
        step: number of steps.
        spent_s: time spent on the steps so far.
        next_world: number of the next world to render.
        watch: detector of a divergence.
    """

    network: Vision
    optimizers: tuple[torch.optim.Optimizer, ...]
    average: Average
    rng: np.random.Generator
    scaling: Scaling | None = None
    step: int = 0
    spent_s: float = 0.0
    next_world: int = 0
    watch: Watch = field(default_factory=lambda: Watch(RESUME))


def begin(options: TrainingOptions) -> VisionState:
    """Return the state before the first step."""
    torch.manual_seed(options.seed)
    network = Vision().to(memory_format=torch.channels_last)
    # The matrices that it multiplies are stored as planes, see `Sweep.forward`.
    network.trunk.sweep.more.to(memory_format=torch.contiguous_format)
    hidden, others = optimizers.split(network, "last")
    rate = options.learning_rate
    return VisionState(
        network,
        (
            optimizers.Muon(hidden, rate, WEIGHT_DECAY, fast_dtype()),
            torch.optim.AdamW(others, rate, weight_decay=WEIGHT_DECAY, fused=True),
        ),
        Average(network),
        np.random.default_rng((options.seed, 1)),
    )


def save_state(state: VisionState) -> dict[str, Any]:
    """Return a state in the form of a checkpoint."""
    scaling = state.scaling
    return {
        "network": state.network.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
        "average": state.average.saved(),
        "scaling": scaling
        and [torch.from_numpy(part) for part in (scaling.mean, scaling.deviation)],
        "step": state.step,
        "spent_s": state.spent_s,
        "next_world": state.next_world,
    }


def restore_state(options: TrainingOptions, saved: dict[str, Any]) -> VisionState:
    """Return the state of a checkpoint."""
    state = begin(options)
    state.network.load_state_dict(saved["network"])
    for optimizer, kept in zip(state.optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
    state.average.restore(saved["average"])
    if saved["scaling"] is not None:
        state.scaling = Scaling(*(part.numpy() for part in saved["scaling"]))
    state.step, state.spent_s = saved["step"], saved["spent_s"]
    state.next_world = saved["next_world"]
    # Use other random draws than those before the checkpoint.
    state.rng = np.random.default_rng((options.seed, 1, state.step))
    return state


class Stopwatch:
    """Measures the time between two laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap, or since the creation."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


@dataclass(frozen=True, slots=True)
class VisionRun:
    """The resources of the vision stage: options, samples, painters, records and callbacks."""

    options: TrainingOptions
    replay: Replay
    crew: Crew
    records: Records
    save: Callable[[], None]
    tick: Tick


def run(state: VisionState, work: VisionRun) -> None:
    """Train until the stage's time is over.

    Raises:
        TrainingError: the training diverged, or a painter failed.
    """
    options, records = work.options, work.records
    _wait_for(state, work, FIRST_SAMPLES)
    if state.scaling is None:
        state.scaling = measure(VISION_TARGETS, work.replay.targets())
    turns = Turns(work.replay, options.batch)
    clock, marked_s = Stopwatch(), state.spent_s
    while state.spent_s < options.vision_s:
        if not turns.take():
            _note_worlds(state, work.crew.receive(0.05))
            state.spent_s += clock.lap()
            continue
        rate = learning_rate(state.spent_s / options.vision_s, options.learning_rate)
        loss, parts = step(state, work.replay.draw(state.rng, options.batch), rate)
        state.spent_s += clock.lap()
        state.watch.see(STAGE, state.step, loss)
        if state.step % _ROW_STEPS == 0:
            _note_worlds(state, work.crew.receive())
            row = {name: round(float(part), 4) for name, part in parts.items()}
            minutes, uses = round(state.spent_s / 60.0, 3), turns.uses
            records.add(stage=STAGE, step=state.step, minutes=minutes, loss=loss, uses=uses, **row)
            work.tick(state.spent_s / options.vision_s, f"step {state.step}, loss {loss:.3f}")
        if state.spent_s - marked_s > CHECKPOINT_S:
            # Let painters work during the evaluation, which takes seconds.
            turns.give()
            work.save()
            marked_s = state.spent_s


def step(state: VisionState, batch: Batch, rate: float) -> tuple[float, dict[str, Tensor]]:
    """Do one step; return its loss, and the loss of each head."""
    assert state.scaling is not None
    mirror_some(batch, state.rng)
    dtype = fast_dtype()
    views = disturbed(torch.from_numpy(batch.images), state.rng, dtype)
    scaled = (batch.targets - state.scaling.mean) / state.scaling.deviation
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
    state.network.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs = state.network(views)
    loss, parts = total_loss(VISION_TARGETS, outputs, torch.from_numpy(scaled))
    hints = hint_loss(outputs, batch.targets)
    loss = loss + torch.stack([*hints.values()]).sum()
    parts |= {name: hint.detach() for name, hint in hints.items()}
    state.network.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.network.parameters(), CLIP)
    for optimizer in state.optimizers:
        optimizer.step()
    state.average.update(state.network)
    state.step += 1
    return float(loss.detach()), parts


def mirror_some(batch: Batch, rng: np.random.Generator) -> None:
    """Mirror about half of the samples, chosen at random, in place."""
    chosen = np.flatnonzero(rng.random(len(batch.images)) < 0.5)
    batch.images[chosen] = mirror_images(batch.images[chosen])
    batch.targets[chosen] = mirror_target(VISION_TARGETS, batch.targets[chosen])


def disturbed(images: Tensor, rng: np.random.Generator, dtype: torch.dtype) -> Tensor:
    """Return views with random brightness, contrast and noise, equal for all frames of a sample.

    The views (n, 2, 12, 128, 256) uint8 become `dtype` of the same shape, about [-2, 2].
    """
    count = images.shape[0]
    scales = (1.0 + _GAIN * rng.uniform(-1.0, 1.0, count)) / SPREAD
    shifts = np.zeros((count, VIEW_CHANNELS), np.float32)
    for first in (0, 6):  # luma of both frames
        shifts[:, first : first + 4] = rng.uniform(-_SHIFT, _SHIFT, (count, 1))
    shifts -= MIDDLE * scales[:, None]
    high, wide = images.shape[3:]
    lines = (2 * high, wide * VIEW_CHANNELS)
    noise = (_NOISE * torch.randn(lines)).to(dtype)
    views = torch.empty((2 * count, high, wide, VIEW_CHANNELS), dtype=dtype)
    # One sample at a time stays in a core's cache: 20 ms for 32 samples, instead of 44 ms all at
    # once (two cores with bfloat16, 2026-11-26).
    for index, scale in enumerate(scales):
        picture = images[index].permute(0, 2, 3, 1).contiguous().to(dtype).view(lines)
        shift = torch.from_numpy(np.tile(shifts[index], wide)).to(dtype)
        view = views[2 * index : 2 * index + 2].view(lines)
        torch.add(noise + shift, picture, alpha=float(scale), out=view)
    return views.permute(0, 3, 1, 2).unflatten(0, (count, 2))


def learning_rate(share: float, highest: float) -> float:
    """Return the rate at a share of the time: a linear rise, then a cosine decay."""
    if share < _WARM_UP:
        return highest * (0.05 + 0.95 * share / _WARM_UP)
    down = min((share - _WARM_UP) / (1.0 - _WARM_UP), 1.0)
    return highest * (_LAST_RATE + (1.0 - _LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * down)))


@torch.inference_mode()
def answers(vision: Vision, scaling: Scaling, samples: Sequence[Sample]) -> Singles:
    """Return a network's outputs for samples in the layout of targets: means or probabilities."""
    vision.eval()
    found = []
    for start in range(0, len(samples), _JUDGED_AT_ONCE):
        images = np.stack([sample.images for sample in samples[start : start + _JUDGED_AT_ONCE]])
        outputs = vision(as_input(torch.from_numpy(images)))
        parts = [_means(head, outputs[head.name]) for head in VISION_TARGETS]
        found.append(np.concatenate([part.numpy() for part in parts], axis=1))
    means = np.concatenate(found)
    return np.asarray(means * scaling.deviation + scaling.mean, np.float32)


def _means(head: Head, output: Tensor) -> Tensor:
    if head.kind == "gaussian":
        return output[:, : head.size]
    if head.kind == "binary":
        return output.sigmoid()
    return output.reshape(-1, *head.shape).softmax(-1).reshape(len(output), -1)


def _wait_for(state: VisionState, work: VisionRun, count: int) -> None:
    wanted = min(count, work.replay.plan.slots)
    while work.replay.held < wanted:
        _note_worlds(state, work.crew.receive(0.2))
        work.tick(0.0, f"rendering the first samples, {work.replay.held} of {wanted}")


def _note_worlds(state: VisionState, numbers: list[int]) -> None:
    state.next_world = max([state.next_world, *(number + 1 for number in numbers)])
