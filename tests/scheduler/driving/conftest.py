"""Lines that refuse something are compared whole, with tests/golden/refused_<what>.txt."""

import re
from collections.abc import Callable, Mapping

import pytest

from scheduler.errors import ModelError
from tests.support.golden import golden as golden

Refusals = Callable[[str, Mapping[str, Callable[[], object]]], None]


def refusal(call: Callable[[], object]) -> str:
    """Return the one line with which a call is refused."""
    with pytest.raises(ModelError) as caught:
        call()
    assert "\n" not in str(caught.value)
    # What follows is Python's, and of its version.
    return re.sub(r"(cannot be read as TOML: ).*", r"\1...", str(caught.value))


@pytest.fixture
def refusals(golden: Callable[[str, str], None]) -> Refusals:
    """Return a function that compares what each call of a table is refused with."""

    def compare(what: str, calls: Mapping[str, Callable[[], object]]) -> None:
        lines = [f"{name}\n    {refusal(call)}\n" for name, call in calls.items()]
        golden(f"refused_{what}", "".join(lines))

    return compare
