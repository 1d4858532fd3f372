"""Passes that are verified each time they run: what the whole suite of the compiler uses."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from scheduler import pipeline
from scheduler.context import CompileContext
from scheduler.ir.node import Node
from scheduler.ir.verify import verify
from scheduler.pipeline import Pass


@dataclass(frozen=True, slots=True)
class Verified:
    """A pass, and the check that what it returns keeps the rules, shapes and types of a graph."""

    name: str
    apply: Pass

    def __call__(self, roots: Sequence[Node]) -> Mapping[Node, Node]:
        new = self.apply(roots)
        verify([new[r] for r in roots], self.name)
        for root in roots:
            found, kept = new[root], (new[root].shape, new[root].dtype)
            assert kept == (root.shape, root.dtype), f"{self.name}: {root!r} became {found!r}"
        return new


@contextmanager
def verified_passes() -> Iterator[None]:
    """Verify all passes; those that are verified already are left as they are."""
    listed = pipeline.passes

    def checked(context: CompileContext) -> tuple[tuple[str, Pass], ...]:
        found = listed(context)
        return tuple((n, p if isinstance(p, Verified) else Verified(n, p)) for n, p in found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "passes", checked)
        yield
