"""Functions of float64 in OpenCL C: those of the device's library, called for each element.

PoCL chooses its library by the processor's flags, and the library takes a vector in one register
where it has that. A compiler that is told of less than the flags say cuts the vector in pieces, and
the two do not understand each other; one number is always passed in the same way.
"""

from __future__ import annotations

from typing import Final

from scheduler.lower.prelude_text import Function, Host

PREFIX: Final = "m_double_"


def _each(name: str, arguments: str) -> Function:
    parameters = ", ".join(f"double$S {a}" for a in arguments)
    lanes = ", ".join(f"((const double*)&{a})[i]" for a in arguments)
    head = f"\nM_INLINE double$S __attribute__((overloadable)) {PREFIX}{name}({parameters})"
    plain = f"{head} {{ return {name}({', '.join(arguments)}); }}\n"
    loop = f"for (int i = 0; i < $N; i++) ((double*)&y)[i] = {name}({lanes});"
    return Function((), plain, (Host(f"{head} {{\n  double$S y;\n  {loop}\n  return y;\n}}\n"),))


_UNARY: Final = [
    "sqrt",
    "exp",
    "log",
    "sin",
    "cos",
    "tanh",
    "erf",
    "floor",
    "ceil",
    "rint",
    "trunc",
    "fabs",
]
FUNCTIONS: Final = {
    **{f"{PREFIX}{name}": _each(name, "x") for name in _UNARY},
    f"{PREFIX}pow": _each("pow", "xy"),
}
