"""Writes functions of the prelude: templates over the vector width, and polynomials.

In a template, `$T` is the float type (float, float16, ...), `$I` the int type of the same width,
`$N` the width, and `$S` the width as a suffix, which is empty for scalars. `$ANY` is the body of
`m_any`. A function can have other forms for clang and the host's processor
(`DeviceSpec.host_clang`); they are used only if M_HOST is defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ABSOLUTE: Final = "as_$T(as_$I({0}) & 0x7fffffff)"
SIGN: Final = "(as_$I({0}) & (int)0x80000000)"


class Host(NamedTuple):
    """A form of a function for clang and the host's processor."""

    text: str  # template
    condition: str = ""  # preprocessor condition on features of the processor
    width: int = 0  # the only width it supports; 0 for any width that has no form of its own


class Function(NamedTuple):
    """A function of the prelude."""

    needs: tuple[str, ...]  # names of the functions it calls
    text: str  # template, expanded for each width in use, scalars first
    # forms that replace the text; the first whose condition holds is used
    host: tuple[Host, ...] = ()

    def at(self, width: int, *, host_clang: bool) -> str:
        """Return the function's definition for a vector width."""
        forms: dict[str, Host] = {}  # by condition; a second form with the same one is unreachable
        for form in sorted(self.host, key=lambda f: not f.width):
            if form.width in (0, width):
                forms.setdefault(form.condition, form)
        parts: list[str] = []
        for form in forms.values() if host_clang else ():
            test = f"defined(M_HOST) && {form.condition}" if form.condition else "defined(M_HOST)"
            parts.append(f"#{'elif' if parts else 'if'} {test}\n{form.text.strip()}\n")
        if parts:
            parts = ["\n", *parts, f"#else\n{self.text.strip()}\n#endif\n"]
        return _filled("".join(parts) or self.text, width)


def _filled(text: str, width: int) -> str:
    """Return a template with the types for a vector width."""
    suffix = str(width) if width > 1 else ""
    named = {
        "$T": f"float{suffix}",
        "$I": f"int{suffix}",
        "$N": str(width),
        "$S": suffix,
    }
    for key, value in named.items():
        text = text.replace(key, value)
    return text.replace("$ANY", _any(width))


def _any(width: int) -> str:
    """Return the body of `m_any`, which combines halves until one lane is left."""
    lines, name = [], "mask"
    while width > 2:
        width //= 2
        lines.append(f"  const int{width} mask{width} = {name}.lo | {name}.hi;")
        name = f"mask{width}"
    return "\n".join([*lines, f"  return {name}{'.x | ' + name + '.y' if width == 2 else ''};"])


def number(value: float) -> str:
    """Return a float32 constant as a vector of the template's width."""
    return f"($T)({value!r}f)"


def horner(name: str, variable: str, coefficients: Sequence[float]) -> str:
    """Return statements that define `name` as a polynomial; the highest power comes first."""
    first, *rest = coefficients
    return "\n".join([f"  $T {name} = {number(first)};", then(name, variable, rest)])


def then(name: str, variable: str, coefficients: Sequence[float]) -> str:
    """Return statements that continue a polynomial by Horner's scheme."""
    steps = [f"  {name} = m_fma({name}, {variable}, {number(c)});" for c in coefficients]
    return "\n".join(steps)


def two_chains(name: str, variable: str, coefficients: Sequence[float]) -> str:
    """Return statements that define `name` as a polynomial, with even and odd powers separated.

    This has half the latency of Horner's scheme and one more operation. The names of its variables
    begin with `name`.
    """
    lines = [f"  const $T {name}2 = {variable} * {variable};"]
    upward = coefficients[::-1]
    for part, own in (("e", upward[::2]), ("o", upward[1::2])):
        lines.append(horner(name + part, f"{name}2", own[::-1]))
    lines.append(f"  $T {name} = m_fma({name}o, {variable}, {name}e);")
    return "\n".join(lines)


def unary(name: str, body: str) -> str:
    """Return the template of a function of one float."""
    return (
        f"\nM_INLINE $T __attribute__((overloadable)) {name}($T x) {{\n{body.strip(chr(10))}\n}}\n"
    )
