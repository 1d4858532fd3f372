"""Says with --explain what became slower, as `explain` says why a drive changed."""

from __future__ import annotations

from tools.regress.explain.explain import Explanation
from tools.regress.run import TimingOutcome


def explain_timing(outcome: TimingOutcome) -> Explanation:
    """Say what became slower, of an entry whose timing gate failed.

    Its `largest` is in ms, of a frame.
    """
    verdict = outcome.verdict
    lines = verdict.lines or (verdict.text,)
    name = f"the speed of {outcome.entry}"
    if not verdict.slower_kernels:
        return Explanation(name, "speed", lines)
    worst = verdict.slower_kernels[0]
    return Explanation(name, "speed", lines, -1, worst.names[0], worst.nodes, worst.lost_ms)
