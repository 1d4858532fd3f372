"""Summarizes the verdict of a regression: one line, GitHub annotations, Markdown and JUnit XML.

JUnit XML is for systems that collect test results, Markdown for a comment on a pull request, and
annotations for GitHub's workflow view. Anything not judged is marked as skipped or named, never as
passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree as Xml

from runtime.texts import count_text
from tools.lib.terminal import printable
from tools.regress.explain.explain import Explanation
from tools.regress.judge.verdict import SHOWN_CHANGES, DriveVerdict
from tools.regress.run import RunVerdict, TimingOutcome
from tools.regress.tell.whole import TITLE, WholeVerdict, gate_word

SUITE: Final = "modeld regress"
# GitHub shows at most ten annotations of a step.
MAX_ANNOTATIONS: Final = 10


def conclusion(verdict: RunVerdict) -> str:
    """Return the conclusion of the run and the recommended action."""
    total = count_text(len(verdict.drives), "drive")
    states = [drive.status for drive in verdict.drives]
    failures, changed = states.count("failed"), states.count("changed")
    if failures:
        more = f"; {changed} changed" if changed else ""
        return f"{failures} of {total} could not be judged{more}"
    if verdict.is_update:
        return f"{count_text(len(verdict.accepted), 'reference')} written for {total}"
    what = [f"{changed} of {total} {_changed(verdict)}"] if changed else []
    missed = sum(not gate.holds for gate in verdict.whole.gates)
    what += [f"{count_text(missed, 'gate')} over all drives not held"] if missed else []
    timings = {timing.status for timing in verdict.timings}
    what += ["the program is slower"] if "changed" in timings else []
    what += ["the speed could not be measured"] if "failed" in timings else []
    if what:
        return f"{', '.join(what)}. {_advice(verdict)}"
    notes = ["its speed was not judged"] if "not judged" in timings else []
    words = [gate_word(gate) for gate in verdict.whole.gates]
    if "not judged" in words:
        count = count_text(words.count("not judged"), "gate")
        notes.insert(0, f"{count} over all drives not judged")
    if verdict.against and not any(_gates(verdict)):
        notes.insert(0, "no gate was given, so that its behaviour was not judged")
    return "; ".join([f"{total} passed" if states else "no drive in this shard", *notes])


def _changed(verdict: RunVerdict) -> str:
    return f"not as allowed against {verdict.against}" if verdict.against else "changed"


def _gates(verdict: RunVerdict) -> Iterator[str]:
    for drive in verdict.drives:
        yield from (gate.gate for gate in drive.behaviour.gates)
    yield from (gate.gate for gate in verdict.whole.gates)


def _advice(verdict: RunVerdict) -> str:
    is_changed = any(drive.changes for drive in verdict.drives) or not verdict.whole.holds
    if not is_changed and not any(one.status == "changed" for one in verdict.timings):
        return "Read the messages above, and run again."
    where = "--reference DIR " if verdict.against else ""
    return f'If intended, accept with `modeld regress ... {where}--update --reason "..."`.'


# --- GitHub -----------------------------------------------------------------------------------


def error_lines(verdict: RunVerdict) -> list[str]:
    """Return GitHub workflow commands for failures; empty if there are none."""
    found = []
    for drive in verdict.drives:
        if drive.status == "failed":
            found.append(_error(drive.name, f"could not be judged: {drive.summary}"))
        elif drive.changes:
            rest = len(drive.changes) - 1
            more = f" (and {rest} more)" if rest else ""
            found.append(_error(drive.name, f"{drive.changes[0].text}{more}"))
    found += [_error(TITLE, gate.text) for gate in verdict.whole.gates if not gate.holds]
    found += [
        _error(f"speed of {timing.entry}", _speed(timing))
        for timing in verdict.timings
        if timing.status in ("changed", "failed")
    ]
    return found[:MAX_ANNOTATIONS]


def _error(title: str, text: str) -> str:
    lines = [printable(line).replace("%", "%25") for line in text.split("\n")]
    text, title = "%0A".join(lines), printable(title).replace("%", "%25")
    title = f"{SUITE}: {title}".replace(":", "%3A").replace(",", "%2C")
    return f"::error title={title}::{text}"


def markdown(verdict: RunVerdict, pictures: Sequence[tuple[str, str, str]] = ()) -> str:
    """Return the verdict as Markdown for GitHub.

    `pictures`: drive, description and URL of each picture.
    """
    parts = [f"### {SUITE}: {_word(verdict)}", _text(conclusion(verdict))]
    rows = [(_mark(one.status), one.name, one.summary) for one in verdict.drives]
    rows += [(_mark(one.status), one.entry, _speed(one)) for one in verdict.timings]
    parts.append(_table(("", "what", "result"), rows))
    parts += _whole(verdict.whole, verdict.against)
    for drive in verdict.drives:
        shown = [one for one in pictures if one[0] == drive.name]
        if drive.changes or shown or (drive.behaviour.gates and not drive.error):
            parts += _drive(drive, shown)
    parts += [_text(line) for line in verdict.accepted]
    facts = {**verdict.model, **verdict.environment}
    names = ("artifact", "device_class", "device", "modeld", "commit", "modified")
    known = [(name, facts[name]) for name in names if name in facts]
    parts.append(_folded("Where it ran", _table(("", ""), known)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _speed(timing: TimingOutcome) -> str:
    """Return the verdict on the speed, with the slower parts."""
    return "; ".join((timing.verdict.text, *timing.verdict.lines))


def _word(verdict: RunVerdict) -> str:
    if any(drive.status == "failed" for drive in verdict.drives):
        return "could not be judged"
    if verdict.is_update:
        return "accepted"
    return "passed" if verdict.exit_code == 0 else "changed"


def _mark(status: str) -> str:
    signs = {"passed": "✅", "changed": "❌", "failed": "⚠️", "not judged": "⏭️"}
    words = {"failed": "could not be judged"}
    return f"{signs[status]} {words.get(status, status)}"


def _whole(whole: WholeVerdict, against: str) -> list[str]:
    if not whole.rows and not whole.gates:
        return []
    sides = (against or "reference", "now")
    header, rows = whole.table(sides)
    costs = whole.cost_rows()
    gates = [(gate_word(one), one.text) for one in whole.gates]
    return [
        f"#### {TITLE}",
        _table(("", "gate"), gates) if gates else "",
        _table(header, rows) if rows else "No quantity differs.",
        _table(("cost", *sides, "change"), costs) if costs else "",
    ]


def _drive(drive: DriveVerdict, pictures: Sequence[tuple[str, str, str]]) -> list[str]:
    lines = [f"- {_text(change.text)}" for change in drive.changes[:SHOWN_CHANGES]]
    rest = len(drive.changes) - SHOWN_CHANGES
    lines += [f"- and {rest} more, see the report"] if rest > 0 else []
    gates = [("holds" if gate.holds else "FAILS", gate.text) for gate in drive.behaviour.gates]
    shown = [f"![{_text(title)}]({address})" for _, title, address in pictures]
    content = ["\n".join(lines), _table(("", "gate"), gates) if gates else "", *shown]
    return [_folded(drive.name, "\n\n".join(part for part in content if part))]


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{_text(title)}</summary>\n\n{content}\n\n</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_text(cell) for cell in line)} |" for line in lines)


def _text(text: str) -> str:
    """Return text with Markdown, table and mention characters escaped."""
    return printable(text).translate({ord(sign): f"&#{ord(sign)};" for sign in "&<>|`*_[]@#"})


# --- JUnit ------------------------------------------------------------------------------------


def junit(verdict: RunVerdict) -> str:
    """Return the verdict as JUnit XML: a case per drive, per gate over all drives, and per entry.

    Changes are failures. Drives that could not be judged are errors. Unjudged gates are skipped.
    """
    suite = Xml.Element("testsuite", name=SUITE)
    for drive in verdict.drives:
        wall_s = drive.result.measured.wall_s if drive.result else 0.0
        case = _case(suite, "drives", drive.name, wall_s)
        if drive.status == "failed":
            _note(case, "error", drive.error)
        elif drive.status == "changed":
            _note(case, "failure", *(change.text for change in drive.changes))
        Xml.SubElement(case, "system-out").text = _xml_text(drive.summary)
    for gate in verdict.whole.gates:
        case = _case(suite, TITLE.lower(), gate.gate)
        tag = {"FAILS": "failure", "not judged": "skipped"}.get(gate_word(gate))
        if tag is not None:
            _note(case, tag, gate.text)
    for timing in verdict.timings:
        _note_timing(_case(suite, "speed", timing.entry), timing)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in suite):.3f}")
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"
    )


def _case(suite: Xml.Element, group: str, name: str, wall_s: float = 0.0) -> Xml.Element:
    return Xml.SubElement(
        suite,
        "testcase",
        classname=f"modeld.{group}",
        name=_xml_text(name),
        time=f"{wall_s:.3f}",
    )


def _note_timing(case: Xml.Element, timing: TimingOutcome) -> None:
    tags = {"changed": "failure", "failed": "error", "not judged": "skipped"}
    if timing.status in tags:
        _note(case, tags[timing.status], timing.verdict.text, *timing.verdict.lines)


def _note(case: Xml.Element, tag: str, *texts: str) -> None:
    note = Xml.SubElement(case, tag, message=_xml_text(texts[0] if texts else ""))
    note.text = _xml_text("\n".join(texts))


def _xml_text(text: str) -> str:
    """Return text without characters that XML does not allow."""
    return "\n".join(printable(line) for line in text.split("\n"))


# --- What became slower, for --explain --------------------------------------------------------


def explain_timing(outcome: TimingOutcome) -> Explanation:
    """Explain the failed timing gate of an entry.

    `largest` of the result is the lost time per frame, in ms.
    """
    verdict = outcome.verdict
    lines = verdict.lines or (verdict.text,)
    name = f"the speed of {outcome.entry}"
    if not verdict.slower_kernels:
        return Explanation(name, "speed", lines)
    worst = verdict.slower_kernels[0]
    return Explanation(name, "speed", lines, -1, worst.names[0], worst.nodes, worst.lost_ms)
