"""The sentence that leads the report of a replay."""

from __future__ import annotations

from html import escape

import numpy as np

from runtime.quantities import count_text
from tools.messages.drive_log import DriveLog


def answers_lead(drive: DriveLog, frames_sent: int, budget_ms: float) -> str:
    """Return the conclusion as HTML: were all frames answered, and in time.

    `drive`: the daemon's messages. `frames_sent`: camera frames that were offered to the daemon.
    `budget_ms`: for one frame, at 20 Hz.
    """
    times = drive.execution_ms
    answered, valid = drive.counts["modelV2"], drive.counts["modelV2:valid"]
    sent = count_text(frames_sent, "frame")
    wrong = []
    if answered < frames_sent:
        wrong.append(f"{frames_sent - answered} of {sent} have no answer")
    if valid < answered:
        wrong.append(f"{answered - valid} of {count_text(answered, 'answer')} are not valid")
    if not drive.all_finite:
        wrong.append("there is NaN or infinity in the outputs")
    said = f"{'; '.join(wrong).capitalize()}." if wrong else f"All {sent} have valid answers."
    late = float(np.mean(times > budget_ms)) if times.size else 0.0
    if times.size:
        slow = f"{late:.0%} of them took longer" if late > 0.01 else "nearly all took less"
        said += f" Half took at most {np.median(times):.1f} ms; {slow} than {budget_ms:g} ms, "
        said += "the budget at 20 Hz."
    kind = " bad" if wrong else " good" if late <= 0.01 else ""
    return f'<p class="lead{kind}">{escape(said)}</p>'
