"""Which cases of a table the quick tests run; the others are slow, and run in `make test-all`."""

from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def quick_cases(cases: Iterable[T], *quick: T) -> list[ParameterSet]:
    """Return cases for `parametrize`: all but the `quick` ones are marked as slow."""
    listed = list(cases)
    unknown = [case for case in quick if case not in listed]
    if unknown:
        raise ValueError(f"quick cases: expected some of {listed}, found {unknown}")
    return [pytest.param(case, marks=[] if case in quick else pytest.mark.slow) for case in listed]
