"""ONNX's own test suite, compiled and run on the OpenCL device; `make onnx`.

Every test passes, or is out of scope and refused with a clear error, or is a known failure with its
reason. See docs/onnx-suite.md.
"""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

import numpy as np
import pytest
from onnx.backend.test.runner import Runner

from scheduler.errors import ModelError
from scheduler.onnx_backend.backend import OnnxBackend
from tests.onnx_suite.cases import SuiteCase, all_cases
from tests.onnx_suite.figures import PROPERTY, Result
from tests.onnx_suite.known_failures import KNOWN_FAILURES
from tests.onnx_suite.out_of_scope import (
    EXCLUSIONS,
    Exclusion,
    exclusion_of,
    is_in_scope,
    traits_of,
)

pytestmark = pytest.mark.opencl

Record = Callable[[str, object], None]


def marked(case: SuiteCase) -> object:
    """Return a test's parameters, marked if it is known to fail."""
    reasons = [why for pattern, why in KNOWN_FAILURES.items() if fnmatchcase(case.name, pattern)]
    # Wrong values only: a refusal or a crash is a failure all the same.
    mark = pytest.mark.xfail
    marks = [mark(reason=reasons[0], strict=True, raises=AssertionError)] if reasons else []
    return pytest.param(case, id=case.name, marks=marks)


# Two units of the last place. onnx's 1e-3 is less than one for half of all numbers, and where
# halves are rounded between operators, sums taken in another order may differ by one at each.
HALF_TOLERANCE = 2**-9


@pytest.mark.parametrize("case", [marked(case) for case in all_cases()])
def test_suite(case: SuiteCase, record_property: Record) -> None:
    model = case.model()
    traits = traits_of(model)
    exclusion = exclusion_of(case.name, traits)
    result = Result(
        kind=case.kind,
        operators=tuple(sorted(traits.operators)),
        in_scope=case.kind == "node" and is_in_scope(traits),
        excluded=exclusion.reason if exclusion else "",
    )
    # Where the test fails, this is what is known of it.
    record_property(PROPERTY, result.as_data())
    if exclusion is not None:
        assert_refused(case, exclusion)
        return
    rtol, atol = case.source.rtol, case.source.atol
    with OnnxBackend.prepare(model) as prepared:
        for inputs, expected in case.data_sets(model):
            found = prepared.run(inputs)
            if np.float16 in [value.dtype for value in expected if isinstance(value, np.ndarray)]:
                rtol = max(rtol, HALF_TOLERANCE)
            Runner.assert_similar_outputs(expected, found, rtol, atol, case.name)
        assert prepared.last is not None, "the test runs nothing"
        record_property(PROPERTY, result.ran(prepared.last.folded).as_data())


def assert_refused(case: SuiteCase, exclusion: Exclusion) -> None:
    """Assert that a test out of scope ends in a typed error that says why; others are failures."""
    model, said = case.model(), None
    try:
        with OnnxBackend.prepare(model) as prepared:
            for inputs, _ in case.data_sets(model):
                prepared.run(inputs)
    except ModelError as error:
        said = str(error)
    if said is None:
        pytest.fail(f'the table is stale: this is listed under "{exclusion.reason}", and it works')
    assert re.search(exclusion.says, said), f"does not say {exclusion.says!r}: {said}"


def test_every_known_failure_is_a_test() -> None:
    names = [case.name for case in all_cases()]
    unknown = [p for p in KNOWN_FAILURES if not any(fnmatchcase(n, p) for n in names)]
    assert not unknown


def test_every_exclusion_excludes_something() -> None:
    found = [exclusion_of(case.name, traits_of(case.model())) for case in all_cases()]
    assert {e.reason for e in found if e is not None} == {e.reason for e in EXCLUSIONS}
