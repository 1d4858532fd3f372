"""What a run of the suite amounts to: counts by outcome, and the share that must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

PROPERTY = "onnx-suite"
# Of the node tests with listed operators and types only.
LEAST_SHARE = 0.95
# Node tests that compute on the device and are right.
LEAST_NODE_TESTS = 1100
# The same of a sample, where numbers say nothing: of its tests in scope that are right.
LEAST_SHARE_ON_DEVICE = 0.8


@dataclass(frozen=True, slots=True)
class Result:
    """How one test of the suite went; travels between processes as plain data.

    Attributes:
        kind: as in `cases`.
        operators: of its model.
        in_scope: whether it counts for the share.
        excluded: the reason it is out of scope, "" if it is not.
        done: it came to its end: right outputs.
        folded: its outputs depend on no input that is given at run time.
        outcome: pytest's: "passed", "failed", "skipped" (known failures).
        name: of the test.
        message: of its failure, one line.
    """

    kind: str
    operators: tuple[str, ...]
    in_scope: bool
    excluded: str = ""
    done: bool = False
    folded: bool = False
    outcome: str = ""
    name: str = ""
    message: str = ""

    def ran(self, folded: bool) -> Result:
        return replace(self, done=True, folded=folded)

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Result:
        return cls(**{**data, "operators": tuple(data["operators"])})


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of a run: `sample` says of what, "" if it is of the whole suite."""

    results: tuple[Result, ...]
    sample: str = ""

    @property
    def on_device(self) -> list[Result]:
        return [r for r in self.results if r.done and not r.folded]

    @property
    def folded(self) -> list[Result]:
        return [r for r in self.results if r.done and r.folded]

    @property
    def failed(self) -> list[Result]:
        """Neither right nor refused, known failures not among them."""
        return [r for r in self.results if r.outcome == "failed"]

    @property
    def known(self) -> list[Result]:
        return [r for r in self.results if r.outcome == "skipped"]

    @property
    def share(self) -> float:
        """Share of the tests in scope whose outputs are right."""
        counted = [r for r in self.results if r.in_scope]
        return sum(r.done for r in counted) / max(1, len(counted))

    def problems(self) -> list[str]:
        found = []
        if self.share < LEAST_SHARE:
            found.append(f"share in scope {self.share:.1%}, expected {LEAST_SHARE:.0%} or more")
        node_tests = sum(r.kind == "node" for r in self.on_device)
        right = [r for r in self.results if r.in_scope and r.done]
        on_device = sum(not r.folded for r in right) / max(1, len(right))
        if self.sample and on_device < LEAST_SHARE_ON_DEVICE:
            least = f"{LEAST_SHARE_ON_DEVICE:.0%}"
            found.append(
                f"{on_device:.1%} of what is right on the device, expected {least} or more"
            )
        if not self.sample and node_tests < LEAST_NODE_TESTS:
            found.append(f"{node_tests} node tests on the device, expected {LEAST_NODE_TESTS}")
        return found

    def lines(self) -> Iterator[str]:
        refused = Counter(r.excluded for r in self.results if r.excluded and r.outcome == "passed")
        kinds = Counter(r.kind for r in self.results)
        counted = [r for r in self.results if r.in_scope]
        done = [r for r in counted if r.done]
        if self.sample:
            yield f"A SAMPLE, not the suite: {self.sample}; those of ONNX's own among them:"
        yield f"{len(self.results):5} tests: " + ", ".join(f"{n} {k}" for k, n in kinds.items())
        yield f"{len(self.on_device):5} right outputs, computed on the device"
        yield f"{len(self.folded):5} right outputs, found while compiling (no input at run time)"
        yield f"{refused.total():5} out of scope, each refused with an error that says why:"
        for reason, number in refused.most_common():
            yield f"      {number:5} {reason}"
        yield f"{len(self.known):5} known failures"
        yield f"{len(self.failed):5} failures"
        folded = sum(r.folded for r in done)
        yield (
            f"{self.share:.1%} of the {len(counted)} node tests of listed operators and types "
            f"are right ({len(done) - folded} on the device, {folded} while compiling)"
        )


def failures_by_operator(results: Iterable[Result]) -> Iterator[str]:
    """Yield failures grouped by the operators of their models."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(" ".join(result.operators), []).append(result)
    for operators, members in sorted(groups.items()):
        yield f"{operators}: {len(members)}"
        for result in sorted(members, key=lambda r: r.name):
            yield f"    {result.name}: {result.message}"
