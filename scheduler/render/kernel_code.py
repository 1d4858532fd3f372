"""The text of one kernel: `Emitter` collects its statements, `KernelCode` is the result.

The Emitter places each statement in the outermost possible scope, which is that of the deepest loop
variable it depends on. Each scope remembers its values. Together this performs loop-invariant code
motion and common subexpression elimination.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from scheduler.errors import LoweringError
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node
from scheduler.loops.images import Image
from scheduler.loops.pack import Argument


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel."""

    name: str  # the name in the body
    type: str  # the C type, such as "const __global float*" or "__read_only image2d_t"
    argument: Argument  # the node or packed weight that a launch binds
    written: bool  # whether the kernel writes it; other parameters are only read
    image: Image | None = None  # the image, or None for a buffer


@dataclass(frozen=True, slots=True)
class Needs:
    """The features of a device that a kernel needs besides its arguments."""

    float64: bool = False  # whether it computes in float64
    # Whether its work-items share memory or use barriers. Such a kernel cannot be called as a
    # function for one work-item after another.
    work_group: bool = False
    local_bytes: int = 0  # local memory of one work-group, in bytes
    image_reads: int = 0  # texel reads in its text; a read inside a loop counts once
    gated_reads: int = 0  # image reads that a condition can replace by a fill value
    image_writes: int = 0  # texel writes in its text

    def __add__(self, other: Needs) -> Needs:
        """Return the combined needs of two parts of one kernel."""
        return Needs(
            self.float64 or other.float64,
            self.work_group or other.work_group,
            self.local_bytes + other.local_bytes,
            self.image_reads + other.image_reads,
            self.gated_reads + other.gated_reads,
            self.image_writes + other.image_writes,
        )


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The text of a kernel, without the name and attributes that a program gives it."""

    parameters: tuple[Parameter, ...]  # in order; the written ones come first
    body: str  # "{ statements }" and a line end
    items: int  # work-items that have work to do
    lanes: tuple[int, ...]  # vector widths in use
    needs: Needs  # device features it needs
    group: int = 1  # work-items in a work-group; a launch has whole work-groups

    @property
    def declarations(self) -> str:
        """The parameters in C, separated by commas."""
        return ", ".join(f"{p.type} {p.name}" for p in self.parameters)

    @property
    def text(self) -> str:
        """The kernel's C text, from its parameter list on."""
        return f"({self.declarations})\n{self.body}"

    def definition(self, name: str) -> str:
        """Return the kernel in C with a name, to be launched in its work-groups."""
        attribute = f"__attribute__((reqd_work_group_size({self.group}, 1, 1)))"
        return f"__kernel {attribute}\nvoid {name}{self.text}"

    @property
    def launched(self) -> int:
        """The work-items of a launch in whole work-groups; the kernel ends the excess ones."""
        return -(-self.items // self.group) * self.group

    @property
    def storage(self) -> tuple[Node, ...]:
        """The nodes whose storage the kernel writes, in parameter order."""
        written = (p.argument for p in self.parameters if p.written)
        return tuple(node for node in written if isinstance(node, Node))

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments bound after the storage, in parameter order."""
        return tuple(p.argument for p in self.parameters if not p.written)

    @property
    def is_callable(self) -> bool:
        """Whether the body can be that of a function that is called once per work-item."""
        return not self.needs.work_group and all(p.image is None for p in self.parameters)


@dataclass(frozen=True, slots=True)
class Val:
    """A computed value: its C expression, whether it has lanes, and the depth of its scope."""

    code: str  # a variable or a literal
    vector: bool
    depth: int


@dataclass(slots=True)
class Scope:
    """A block of statements."""

    opener: str  # the loop header; empty for the kernel itself
    lines: list[str | Scope] = field(default_factory=list)
    # the values computed in this scope, by key
    memo: dict[Hashable, Val] = field(default_factory=dict)


class Emitter:
    """Collects statements into scopes; owns variable names and the C form of loop variables.

    Attributes:
        scopes: the open scopes, outermost (the kernel's own) first.
        needs: the device features that the statements so far need.

    Args:
        unsigned: whether quotients of indices have unsigned operands. Indices are never negative,
            but a driver's compiler does not know that and corrects signed quotients.
    """

    def __init__(self, *, unsigned: bool = False) -> None:
        self.unsigned = unsigned
        self.scopes = [Scope("")]
        self.needs = Needs()
        self._count = 0
        self._names: dict[Atom, str] = {}
        self._depths: dict[Atom, int] = {}

    @property
    def depth(self) -> int:
        """The depth of the innermost open scope."""
        return len(self.scopes) - 1

    def fresh(self, prefix: str) -> str:
        """Return a new variable name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def statement(self, text: str, depth: int | None = None) -> None:
        """Add a statement to the scope at `depth` (default: innermost), before its open loop."""
        at = self.depth if depth is None else depth
        lines = self.scopes[at].lines
        # The last line of an outer scope is its open loop, so the statement goes before it.
        if at < self.depth:
            lines.insert(len(lines) - 1, text)
        else:
            lines.append(text)

    def define(self, key: Hashable, ctype: str, code: str, *, vector: bool, depth: int) -> Val:
        """Return the value of `code`, computed once per `key`."""
        known = self.lookup(key)
        if known is not None:
            return known
        name = self.fresh("v")
        self.statement(f"const {ctype} {name} = {code};", depth)
        value = Val(name, vector, depth)
        self.scopes[depth].memo[key] = value
        return value

    def lookup(self, key: Hashable) -> Val | None:
        """Return a value remembered in any open scope."""
        for scope in reversed(self.scopes):
            found = scope.memo.get(key)
            if found is not None:
                return found
        return None

    def remember(self, key: Hashable, value: Val) -> None:
        """Remember a value while its scope is open."""
        # A hoisted value outlives the innermost loop.
        self.scopes[value.depth].memo[key] = value

    @contextmanager
    def loop(self, header: str) -> Iterator[None]:
        """Open a loop; values remembered inside are forgotten at its end."""
        scope = Scope(header)
        self.scopes[-1].lines.append(scope)
        self.scopes.append(scope)
        try:
            yield
        finally:
            self.scopes.pop()

    def name_atom(self, atom: Atom, code: str, depth: int) -> None:
        """Set the C form of a loop variable or run-time value, and the depth of its scope."""
        self._names[atom] = code
        self._depths[atom] = depth

    def name_of(self, atom: Atom) -> str:
        """Return the C form of an atom."""
        return self._names[atom]

    def knows(self, ix: Ix) -> bool:
        """Whether every variable of an index is in scope."""
        return all(atom in self._depths for atom in ixs.leaves(ix))

    def depth_of(self, ix: Ix) -> int:
        """Return the depth of the deepest variable in an index."""
        return max((self._depths[a] for a in ixs.leaves(ix)), default=0)

    def index(self, ix: Ix) -> str:
        """Return the C expression of an index; raise LoweringError if a partial sum exceeds int."""
        parts = []
        low = high = 0
        for atom, factor in ix.terms:
            # C adds term by term, so an intermediate sum can overflow, too.
            ends = (atom.lo * factor, atom.hi * factor)
            low, high = low + min(ends), high + max(ends)
            _check(max(abs(e) for e in (*ends, low, high)))
            text = self._atom(atom)
            parts.append(text if factor == 1 else f"{text} * {factor}")
        _check(max(abs(low + ix.const), abs(high + ix.const)))
        if ix.const or not parts:
            parts.append(str(ix.const))
        return " + ".join(parts)

    def _atom(self, atom: Atom) -> str:
        if atom.inner is None:
            return self._names[atom]
        inner, n = atom.inner, atom.by
        # C truncates towards 0, so a multiple of n is added to make the operand non-negative.
        shift = max(0, -(inner.lo // n) * n)
        _check(inner.hi + shift)
        text = f"({self.index(inner)})"
        text = f"({text} + {shift})" if shift else text
        sign = "/" if atom.kind == "div" else "%"
        text = f"(int)((uint){text} {sign} {n}u)" if self.unsigned else f"{text} {sign} {n}"
        if shift and atom.kind == "div":
            text = f"{text} - {shift // n}"
        # All indices that contain the division share one variable.
        return self.define(atom, "int", text, vector=False, depth=self.depth_of(inner)).code

    def predicate(self, predicate: Predicate) -> tuple[str, int]:
        """Return the C condition of a predicate, which is not empty, and its depth."""
        tests: list[str] = []
        depth = 0
        for ix, low, high in predicate:
            depth = max(depth, self.depth_of(ix))
            text = self.index(ix)
            # The range of the index often proves one of the two comparisons.
            if ix.lo < low:
                tests.append(f"({text} >= {low})")
            if ix.hi > high:
                tests.append(f"({text} <= {high})")
        # `&` instead of `&&`: comparisons have no side effects, and a short circuit is a branch.
        return " & ".join(tests) or "1", depth

    def text(self, level: int = 1) -> str:
        """Return all statements, indented by `level` levels."""
        out: list[str] = []
        stack: list[tuple[str | Scope, int]] = [
            (line, level) for line in reversed(self.scopes[0].lines)
        ]
        # Loops can be nested deeper than Python's recursion limit.
        while stack:
            item, depth = stack.pop()
            if isinstance(item, str):
                out.append("  " * depth + item)
                continue
            out.append("  " * depth + item.opener + " {")
            stack.append(("}", depth))
            stack.extend((line, depth + 1) for line in reversed(item.lines))
        return "\n".join(out)


def _check(value: int) -> None:
    if value > ixs.LARGEST:
        raise LoweringError(
            f"an index of up to {value} elements, perhaps of a value that is never stored; "
            f"at most {ixs.LARGEST}: use a smaller batch, or split the work"
        )


@dataclass(frozen=True, slots=True)
class Instance:
    """One coordinate of the register tile."""

    mapping: dict[Atom, Ix]  # value of each range, and of each run-time index so far
    coordinates: dict[Atom, tuple[Ix, Ix]]  # (outer step, unroll coordinate) of each range

    def extended(self, other: Instance) -> Instance:
        """Return this instance with the ranges of another added."""
        return Instance(self.mapping | other.mapping, self.coordinates | other.coordinates)
