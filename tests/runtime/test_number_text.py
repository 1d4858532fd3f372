"""Numbers in text: what Python's own functions take beside them is refused."""

import math

import pytest

from runtime.texts import float_of, int_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        (" -2.5e3 ", -2500.0),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("1E-2", 0.01),
        ("-inf", -math.inf),
    ],
)
def test_numbers_are_read(text: str, value: float) -> None:
    assert float_of(text) == value
    assert math.isnan(float_of("NaN"))
    assert (int_of("-007"), int_of("+12 ")) == (-7, 12)


@pytest.mark.parametrize(
    "text",
    ["", ".", "1_0", "1e", "0x10", "1 0", "1,5", "infin", "\u0661\u0660", "1\u0660", "\uff11"],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    for read in (float_of, int_of):
        with pytest.raises(ValueError, match="expected a number, found"):
            read(text)
    with pytest.raises(ValueError, match="expected a number"):
        int_of("1" * 5000)
