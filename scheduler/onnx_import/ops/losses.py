"""Translators of losses of classes that are named by index. Formulas: ONNX documentation."""

from __future__ import annotations

import math

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.tensor import Tensor


def negative_log_likelihood(ctx: NodeContext) -> Value:
    """Translate NegativeLogLikelihoodLoss: scores (N, C, d...) are logarithms of probabilities."""
    return _loss(ctx, ctx.tensor(0))


def softmax_cross_entropy(ctx: NodeContext) -> list[Value]:
    """Translate SoftmaxCrossEntropyLoss; its second output are the logarithms of probabilities."""
    x = ctx.tensor(0)
    logarithms = x.log_softmax(1)
    results: list[Value] = [_loss(ctx, logarithms), logarithms]
    return results[: max(1, ctx.outputs)]


def _loss(ctx: NodeContext, scores: Tensor) -> Tensor:
    """Return the loss of targets (N, d...), reduced as asked for.

    Targets outside of the classes count as losses of 0, with a weight of 1 or, if weights are
    given, of 0.
    """
    target = ctx.tensor(1)
    reduction = ctx.text("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        raise ModelError(f"reduction must be none, sum or mean, found {reduction!r}")
    if scores.ndim < 2 or target.shape != (scores.shape[0], *scores.shape[2:]):
        raise ModelError(
            f"expected scores (N, C, d...) and targets (N, d...), found {scores.shape} and "
            f"{target.shape}"
        )
    classes = (1, scores.shape[1], *[1] * (scores.ndim - 2))
    chosen = Tensor.arange(scores.shape[1]).cast(target.dtype).reshape(classes)
    chosen = target.unsqueeze(1).eq(chosen)
    ignored = ctx.attribute("ignore_index")
    loss = -chosen.where(scores, 0.0).sum(1)
    weight = Tensor(1.0, scores.dtype)
    if ctx.has(2):
        weight = chosen.where(ctx.tensor(2).reshape(classes), 0.0).sum(1)
        loss = loss * weight
    if ignored is not None:
        left_out = target.eq(int(ignored))
        loss = left_out.where(0.0, loss)
        weight = left_out.where(0.0, weight)
    if reduction == "none":
        return loss
    total = loss.sum()
    if reduction == "sum":
        return total
    count = math.prod(target.shape)
    return total / weight.broadcast_to(target.shape).sum() if weight.ndim else total / float(count)
