"""Watch the compiler at work: observers that the pipeline tells what it has done.

    recorder = Recorder()
    with observing(recorder):
        compile_plain("model.onnx")
    recorder.traces[0].stages          # [("input", roots), ("canonicalize", roots), ...]

Observers are those of the current context, so nothing between the caller and the pipeline has to
pass them on. They look and do not touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.ir.origin import Origins

if TYPE_CHECKING:
    from scheduler.ir.node import Node
    from scheduler.kernelize.kernel import Kernel
    from scheduler.loops.schedule import Schedule as Loops
    from scheduler.pipeline import Schedule
    from scheduler.render.render import Nest

# Name of the first stage: the graph before any pass.
INPUT = "input"


class Observer:
    """Is told what the pipeline does; override what is of interest."""

    def after_pass(self, name: str, roots: Sequence[Node], origins: Origins) -> None:
        """The graph has gone through a pass; INPUT is the graph before the first one."""

    def loops(self, kernel: Kernel, loops: Sequence[Loops]) -> None:
        """The loops of a kernel were chosen, one choice for each of its nests."""

    def nests(self, kernel: Kernel, nests: Sequence[Nest]) -> None:
        """The loop nests of a kernel are about to be rendered."""

    def scheduled(self, plan: Schedule) -> None:
        """A schedule is complete."""


@dataclass(slots=True)
class Trace:
    """What happened on the way to one schedule.

    Attributes:
        stages: name and roots of the graph before the first pass and after each.
        origins: ONNX names of the nodes of all stages.
        chosen: kernels with the loops chosen for them, in the order of the choices.
        plan: the result; None while it is not complete.
    """

    stages: list[tuple[str, tuple[Node, ...]]] = field(default_factory=list)
    origins: Origins = field(default_factory=Origins)
    chosen: list[tuple[Kernel, Sequence[Loops]]] = field(default_factory=list)
    plan: Schedule | None = None

    def loops_of(self, kernel: Kernel) -> Sequence[Loops]:
        """Return the loops chosen for each nest of a kernel; nothing if it was not lowered."""
        return next((loops for k, loops in self.chosen if k is kernel), ())


class Recorder(Observer):
    """Keeps a trace of every schedule that is made while it watches."""

    def __init__(self) -> None:
        self._open = Trace()
        self.traces: list[Trace] = []

    def after_pass(self, name: str, roots: Sequence[Node], origins: Origins) -> None:
        """Keep the roots; they keep their graph."""
        if name == INPUT:
            self._open = Trace(origins=origins)
        self._open.stages.append((name, tuple(roots)))

    def loops(self, kernel: Kernel, loops: Sequence[Loops]) -> None:
        """Keep the choice."""
        self._open.chosen.append((kernel, loops))

    def scheduled(self, plan: Schedule) -> None:
        """Complete the trace."""
        self._open.plan = plan
        self.traces.append(self._open)
        self._open = Trace()


_active: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


@contextmanager
def observing(*observers: Observer, alone: bool = False) -> Iterator[None]:
    """Let observers watch what is compiled inside the block.

    Args:
        observers: who.
        alone: the others, who already watch, are not told of it; else these come beside them.
    """
    others = () if alone else _active.get()
    token = _active.set((*others, *observers))
    try:
        yield
    finally:
        _active.reset(token)


def is_watched() -> bool:
    """Whether there is any observer."""
    return bool(_active.get())


def is_recorded() -> bool:
    """Whether a Recorder watches."""
    return any(isinstance(o, Recorder) for o in _active.get())


def after_pass(name: str, roots: Sequence[Node], origins: Origins) -> None:
    """Tell the observers; called by the pipeline."""
    for observer in _active.get():
        observer.after_pass(name, roots, origins)


def loops(kernel: Kernel, chosen: Sequence[Loops]) -> None:
    """Tell the observers; called by the lowering."""
    for observer in _active.get():
        observer.loops(kernel, chosen)


def nests(kernel: Kernel, chosen: Sequence[Nest]) -> None:
    """Tell the observers; called by the lowering."""
    for observer in _active.get():
        observer.nests(kernel, chosen)


def scheduled(plan: Schedule) -> None:
    """Tell the observers; called by the pipeline."""
    for observer in _active.get():
        observer.scheduled(plan)
