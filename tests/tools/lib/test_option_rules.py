"""Tables of options that do not go together."""

import pytest

from tools.errors import UsageError
from tools.lib.options import refuse

RULES = (
    ("rate_hz|bus !live|replay", "expected {1} with it"),
    ("live fault|log", "expected no {1}"),
)
NOTHING: dict[str, object] = {
    "rate_hz": None,
    "bus": None,
    "live": False,
    "replay": [],
    "fault": None,
    "log": (),
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate_hz": 0.0}, "--rate-hz: expected --live with it"),
        ({"bus": ""}, "--bus: expected --live with it"),
        ({"rate_hz": 1.0, "bus": "b"}, "--rate-hz: expected --live with it"),
        ({"live": True, "log": ("a",)}, "--live: expected no --log"),
        ({"live": True, "log": ("a",), "fault": "x"}, "--live: expected no --fault"),
    ],
)
def test_the_first_rule_that_holds_names_its_options(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        refuse(NOTHING | given, RULES)
    assert str(caught.value) == message


@pytest.mark.parametrize("given", [{}, {"bus": "b", "replay": ["x"]}, {"live": True}])
def test_what_no_rule_names_is_allowed(given: dict[str, object]) -> None:
    refuse(NOTHING | given, RULES)
