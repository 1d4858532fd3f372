"""The table of revisions: widths as published, rules row by row, and files that are wrong."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from modeld.outputs.parse_outputs import HEADS as PARSED
from runtime.format.interfaces import META_WIDTHS, ActionRule, parse_interface
from scheduler.driving.derive import HEADS, derive, example_parts, head_problems
from scheduler.driving.revisions import FOLDER, Revision, Rules, load_monitoring, load_revisions
from tests.reference_loop.revisions import TABLE, Facts
from tests.scheduler.driving.conftest import Refusals

REVISIONS = load_revisions()
# Of the output vectors in run order. Published: 6504, 6512, 632, 5884, 1576, 1000, 2576, 2580,
# 18452; the others are the sums of heads, filled up to a multiple of 4 as exporters do.
WIDTHS = {
    "supercombo-0.9.7": (6504,),
    "supercombo-2024-09": (6512,),
    "mlsim-2024-10": (6512,),
    "supercombo-2024-10": (6512,),
    "mlsim-2024-12-13": (6512,),
    "mlsim-2024-12-16": (6512,),
    "supercombo-2025-01": (6504,),
    "supercombo-0.9.8": (6512,),
    "split-2025-02": (632, 5884),
    "split-2025-03": (632, 5884),
    "split-0.9.9": (632, 5884),
    "split-2025-04-17": (1536, 4968),
    "split-2025-04-23": (1536, 4968),
    "split-2025-05-24": (1536, 4968),
    "split-2025-07-02": (1536, 4968),
    "split-2025-07-16": (1432, 5072),
    "split-2025-08-11": (1536, 1000),
    "split-2025": (1576, 1000),
    "split-2025-11": (1576, 1000),
    "on-off-2025": (632, 1948, 992),
    "on-off-2026": (632, 1948, 1980),
    "on-off-2026-action": (632, 1948, 996),
    "supercombo-2026": (2576,),
    "supercombo-2026-action": (2580,),
    "history-2026": (2576,),
    "supercombo-2026-08": (18452,),
}


def test_widths_are_those_published() -> None:
    found = {name: tuple(m.width for m in r.models) for name, r in REVISIONS.items()}
    assert found == WIDTHS
    assert list(REVISIONS) == list(WIDTHS)  # in the order of time
    assert load_monitoring()["dmonitoring-2025"].model.width == 596


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=list(REVISIONS))
def test_every_revision_makes_an_interface_that_can_be_stored(revision: Revision) -> None:
    parts = example_parts(revision)
    states = [name for model in revision.models for name in model.states]
    interface = derive(revision.name, "by hand", parts, states, revision.rules)
    assert parse_interface(json.loads(json.dumps(interface.plain()))) == interface
    assert head_problems(parts, revision.rules.action) == {}


@pytest.mark.parametrize(("name", "facts"), TABLE.items(), ids=list(TABLE))
def test_rules_are_those_of_the_history_of_openpilot(name: str, facts: Facts) -> None:
    rules = REVISIONS[name].rules
    assert rules == Rules(
        image_mode=facts.image_mode,
        drop_policy=facts.drop,
        lane_change=facts.machine,
        # Nobody keeps curvatures where no model takes them.
        curvature_scale=facts.curvature_scale if facts.curvatures else rules.curvature_scale,
        big=facts.big,
        action=ActionRule(
            facts.lateral,
            facts.longitudinal,
            facts.delay,
            facts.extra_delay,
            facts.frame_delay,
            facts.lat_tau,
            facts.long_tau,
            facts.hold_below,
            facts.stop,
            facts.clip_speed,
        ),
    )


def test_curvatures_that_are_kept_as_zeros() -> None:
    zeros = [n for n, revision in REVISIONS.items() if revision.rules.curvature_scale == 0]
    mlsim = ["mlsim-2024-10", "mlsim-2024-12-13", "mlsim-2024-12-16"]
    split = [n for n in REVISIONS if "2025-04-17" <= n.removeprefix("split-") <= "2025-08-11"]
    assert zeros == mlsim + split


def test_heads_are_those_that_the_daemon_parses() -> None:
    parsed = {head.name: head.widths for head in PARSED}
    assert {name: widths for name, widths in HEADS.items() if name in parsed} == {
        # The one hypothesis of a correction is never a mixture.
        **parsed
    }
    assert set(HEADS) - set(parsed) == {"meta"}
    assert HEADS["meta"] == META_WIDTHS


def test_the_document_lists_all_revisions() -> None:
    text = (Path(__file__).parents[3] / "docs/interfaces.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.-]+)` \| (\d{4}[\d-]*) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [(r.name, r.since, r.title) for r in REVISIONS.values()]


GOOD = 'title = "t"\nsince = "2025"\nbase = "split-2025"\n'
POLICY = GOOD + '[[models]]\nrole = "policy"\n'
WRONG = (
    *("title = ", 'titel = "t"', 'since = "2025"\nbase = "split-2025"', 'title = "t"\nsince = "2"'),
    'title = 5\nsince = "2025"\nbase = "split-2025"',
    *(GOOD.replace("split-2025", base) for base in ("split", "new")),
    *(GOOD + "[rules]\n" + rule for rule in ('image_mod = "nearest"', 'image_mode = "near"')),
    *(GOOD + "[rules.action]\nlat_smooth_s = " + value for value in ("11", "nan")),
    *(GOOD + "[rules.action]\nclip_speed = 1", GOOD + '[[models]]\nroles = "policy"'),
    *(POLICY + "widths = { plam = 5 }", POLICY + 'heads = [["plan"]]'),
    *(POLICY + "inputs = { x = [1, 0] }", POLICY + "states = { x = [1] }"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "split-2025.toml").write_text((FOLDER / "split-2025.toml").read_text())
    return tmp_path


def test_a_file_that_is_no_revision_is_named_with_its_key(folder: Path, refusals: Refusals) -> None:
    def load(text: str) -> object:
        (folder / "new.toml").write_text(text)
        return load_revisions(folder)

    refusals("revisions", {repr(text): partial(load, text) for text in WRONG})


def test_a_revision_takes_the_rest_from_its_base(folder: Path) -> None:
    change = '[rules]\nimage_mode = "nearest"\n'
    change += '[[models]]\nrole = "policy"\nwidths = { plan = 4955 }'
    (folder / "new.toml").write_text(GOOD + change)
    found = load_revisions(folder)
    base, new = found["split-2025"], found["new"]
    assert (base.preferred, new.preferred) == (True, False)
    assert new.rules.image_mode == "nearest"
    assert new.rules.action == base.rules.action
    assert new.models[0] == base.models[0]
    assert new.models[1].heads == (("plan", 4955), ("desire_state", 8))
    assert new.models[1].inputs == base.models[1].inputs
