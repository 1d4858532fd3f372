"""The table of revisions: widths as published, rules row by row, and files that are wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from modeld.parse_outputs import HEADS as PARSED
from runtime.driving_interface import META_WIDTHS, parse_interface
from scheduler.driving.derive import derive, example_parts
from scheduler.driving.heads import HEADS, head_problems
from scheduler.driving.revisions import FOLDER, Revision, load_monitoring, load_revisions
from scheduler.errors import ModelError

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
# lateral, its delay and what is added, frame delay, time constants, held below: by hand from the
# published history.
ACTIONS = {
    "supercombo-0.9.7": ("desired_curvature", "steerActuatorDelay", 0.2, 0.0, 0.0, 0.0, 0.0),
    "mlsim-2024-12-13": ("plan", "steerActuatorDelay", 0.2, 0.0, 0.0, 0.0, 0.0),
    "supercombo-2025-01": ("desired_curvature", "steerActuatorDelay", 0.2, 0.0, 0.0, 0.0, 0.0),
    "split-0.9.9": ("desired_curvature", "steerActuatorDelay", 0.2, 0.05, 0.0, 0.0, 0.0),
    "split-2025-04-17": ("desired_curvature", "steerActuatorDelay", 0.2, 0.05, 0.3, 0.3, 0.0),
    "split-2025-04-23": ("desired_curvature", "steerActuatorDelay", 0.2, 0.05, 0.3, 0.3, 0.3),
    "split-2025-05-24": ("desired_curvature", "liveDelay", 0.0, 0.05, 0.3, 0.3, 0.3),
    "split-2025-07-02": ("plan", "liveDelay", 0.0, 0.05, 0.1, 0.3, 0.3),
    "split-2025-08-11": ("plan", "liveDelay", 0.0, 0.05, 0.1, 0.3, 0.3),
    "split-2025-11": ("plan", "liveDelay", 0.0, 0.05, 0.1, 0.3, 0.3),
    "supercombo-2026": ("plan", "liveDelay", 0.0, 0.075, 0.0, 0.3, 0.3),
    "supercombo-2026-08": ("action", "liveDelay", 0.0, 0.075, 0.0, 0.3, 0.3),
    "history-2026": ("plan", "liveDelay", 0.0, 0.075, 0.0, 0.3, 0.3),
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


@pytest.mark.parametrize(("name", "row"), ACTIONS.items(), ids=list(ACTIONS))
def test_rules_of_the_command(name: str, row: tuple[str, str, *tuple[float, ...]]) -> None:
    action = REVISIONS[name].rules.action
    assert row == (
        action.lateral,
        action.lateral_delay,
        action.lateral_delay_extra_s,
        action.frame_delay_s,
        action.lat_smooth_s,
        action.long_smooth_s,
        action.hold_below_mps,
    )


def test_what_changed_when() -> None:
    names = list(REVISIONS)
    rules = {name: revision.rules for name, revision in REVISIONS.items()}

    def are(*those: str) -> list[str]:
        return [n for n in names if n in those]

    assert [n for n in names if rules[n].image_mode == "nearest"] == names[18:]
    assert [n for n in names if rules[n].drop_policy == "run"] == names[22:]
    assert [n for n in names if rules[n].lane_change == "B"] == names[20:]
    assert [n for n in names if not rules[n].action.clip_speed] == names[:2]
    assert [n for n in names if rules[n].action.longitudinal == "none"] == names[:10]
    assert [n for n in names if rules[n].big] == are("supercombo-2026-action", "supercombo-2026-08")
    assert [n for n in names if rules[n].curvature_scale == 0] == [
        *are("mlsim-2024-10", "mlsim-2024-12-13", "mlsim-2024-12-16"),
        *(n for n in names if "2025-04-17" <= n.removeprefix("split-") <= "2025-08-11"),
    ]
    assert [n for n in names if rules[n].action.stop == "speed"] == are(
        "on-off-2026-action", "supercombo-2026-action", "supercombo-2026-08"
    )


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "new.toml: cannot be read as TOML: "),
        ('titel = "t"', "new.toml: titel: unknown key, did you mean title?"),
        ('since = "2025"\nbase = "split-2025"', "new.toml: title: is missing"),
        ('title = 5\nsince = "2025"\nbase = "split-2025"', "title: expected str, found int 5"),
        (GOOD.replace("split-2025", "split"), "base: expected another revision, found 'split'"),
        (GOOD.replace("split-2025", "new"), "base: expected another revision, found itself"),
        (GOOD + '[rules]\nimage_mod = "nearest"', "rules.image_mod: unknown key, did you mean"),
        (GOOD + '[rules]\nimage_mode = "near"', "rules.image_mode: expected one of bilinear, ne"),
        (GOOD + "[rules.action]\nlat_smooth_s = 11", "rules.action.lat_smooth_s: 11.0 is outside"),
        (GOOD + "[rules.action]\nlat_smooth_s = nan", "rules.action.lat_smooth_s: nan is outside"),
        (GOOD + "[rules.action]\nclip_speed = 1", "clip_speed: expected bool, found int 1"),
        (GOOD + '[[models]]\nroles = "policy"', "models[0].roles: unknown key, did you mean role?"),
        (GOOD + '[[models]]\nrole = "policy"\nwidths = { plam = 5 }', "widths.plam: unknown key"),
        (GOOD + '[[models]]\nrole = "policy"\nheads = [["plan"]]', "heads: expected ["),
        (GOOD + '[[models]]\nrole = "policy"\ninputs = { x = [1, 0] }', "inputs.x: expected a sh"),
        (GOOD + '[[models]]\nrole = "policy"\nstates = { x = [1] }', "states.x: expected [shape"),
        ('title = "t"\nsince = "2025"', "new.toml: models: expected at least one model"),
    ],
    ids=lambda x: x if "\n" not in x else None,
)
def test_a_file_that_is_no_revision_is_named_with_its_key(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "split-2025.toml").write_text((FOLDER / "split-2025.toml").read_text())
    (tmp_path / "new.toml").write_text(text)
    with pytest.raises(ModelError) as caught:
        load_revisions(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_revision_takes_the_rest_from_its_base(tmp_path: Path) -> None:
    (tmp_path / "split-2025.toml").write_text((FOLDER / "split-2025.toml").read_text())
    change = (
        '[rules]\nimage_mode = "nearest"\n[[models]]\nrole = "policy"\nwidths = { plan = 4955 }'
    )
    (tmp_path / "new.toml").write_text(GOOD + change)
    found = load_revisions(tmp_path)
    base, new = found["split-2025"], found["new"]
    assert (base.preferred, new.preferred) == (True, False)
    assert new.rules.image_mode == "nearest"
    assert new.rules.action == base.rules.action
    assert new.models[0] == base.models[0]
    assert new.models[1].heads == (("plan", 4955), ("desire_state", 8))
    assert new.models[1].inputs == base.models[1].inputs
