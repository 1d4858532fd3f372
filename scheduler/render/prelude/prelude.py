"""The prelude of a program: macros, and elementwise functions written for vectors in OpenCL C.

The functions replace the device's scalar library. PoCL does not inline its library's functions, so
these use only operators. Tests check the error bounds (`BOUNDS`) over the whole range against
float64. With clang for the host's processor (`DeviceSpec.host_clang`), memory is accessed through
unaligned vector types and lanes are selected with C's ?: operator. Elsewhere the standard functions
do both. The attribute `overloadable` is not standard OpenCL C, but all current OpenCL compilers are
based on clang and support it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scheduler.render.kernel_code import KernelCode
from scheduler.render.memory import SAMPLER
from scheduler.render.prelude import instructions, polynomials
from scheduler.render.prelude.text import ABSOLUTE, Function, Host, unary

# Error bounds in units in the last place. The bound of gelu is relative to |x|, which determines
# the error of a sum of products.
BOUNDS: Final = {
    "exp": 1.0,
    "log": 1.0,
    "sin": 2.0,
    "cos": 2.0,
    "tanh": 3.0,
    "erf": 3.0,
    "pow": 2.0,
    "sqrt": 0.5,
    "floor": 0.0,
    "ceil": 0.0,
    "rint": 0.0,
    "trunc": 0.0,
}
GELU_BOUND: Final = 3e-7

_FMA: Final = """
M_INLINE $T __attribute__((overloadable)) m_fma($T a, $T b, $T c) {
  #pragma OPENCL FP_CONTRACT ON
  return a * b + c;
}
"""
# Without the instruction, a compiler may round the product first and lose a*b - round(a*b). In
# float64 the product is exact.
_FUSED_SCALAR: Final = """
M_INLINE float __attribute__((overloadable)) m_fused(float a, float b, float c) {
  return (float)((double)a * (double)b + (double)c);
}
"""
_FUSED_IN_DOUBLE: Final = """
M_INLINE $T __attribute__((overloadable)) m_fused($T a, $T b, $T c) {
  typedef double$S wide;
  return M_CONVERT($T, M_CONVERT(wide, a) * M_CONVERT(wide, b) + M_CONVERT(wide, c));
}
"""
_HAS_NO_FMA: Final = "defined(__x86_64__) && !defined(__FMA__)"
_FABS: Final = unary("m_fabs", f"  return {ABSOLUTE.format('x')};")
# In the order of definition in the program.
_FUNCTIONS: Final = {
    "m_fma": Function((), _FMA),
    "m_fused": Function(
        (),
        _FMA.replace("m_fma", "m_fused"),
        (Host(_FUSED_SCALAR, _HAS_NO_FMA, 1), Host(_FUSED_IN_DOUBLE, _HAS_NO_FMA)),
    ),
    "m_fabs": Function((), _FABS),
    **instructions.FUNCTIONS,
    **polynomials.FUNCTIONS,
}
# Macros that are defined by a function with another name.
_ALSO: Final = {"M_LOAD_HALF_": "m_round_half", "M_STORE_HALF_": "m_round_half"}
_CONTRACT: Final = "#pragma OPENCL FP_CONTRACT OFF\n"
# A driver other than that of the device row may load an artifact. Only PoCL defines this macro;
# other drivers use the plain text.
_HOST: Final = """#ifdef POCL_DEVICE_ADDRESS_BITS
#if defined(__x86_64__) || defined(__aarch64__)
#if __has_builtin(__builtin_elementwise_roundeven) && __has_builtin(__builtin_elementwise_trunc)
#define M_HOST
#endif
#endif
#endif
#ifdef M_HOST
#define M_INLINE static inline __attribute__((always_inline))
#define M_LOAD(T, N, p) (*(const __global T##N##_u*)(p))
#define M_STORE(T, N, v, p) (*(__global T##N##_u*)(p) = (v))
#define M_AHEAD(p) __builtin_prefetch(p, 0, 2)
#ifdef __x86_64__
#define M_OPAQUE(p) __asm__("" : "+r"(p))
#else
#define M_OPAQUE(p)
#endif
#define M_PICK(T, N, p) (*(const T##N##_u*)(p))
#define M_PUT(T, N, v, p) (*(T##N##_u*)(p) = (v))
#define M_CONVERT(T, x) __builtin_convertvector(x, T)
#define M_CHOOSE(mask, yes, no) ((mask) ? (yes) : (no))
{typedefs}
#else
{plain}#endif
"""
_PLAIN: Final = """#define M_INLINE static inline
#define M_LOAD(T, N, p) vload##N(0, p)
#define M_STORE(T, N, v, p) vstore##N(v, 0, p)
#define M_LOAD_WHOLE(T, N, p) (*(const __global T##N*)(p))
#define M_STORE_WHOLE(T, N, v, p) (*(__global T##N*)(p) = (v))
#define M_AHEAD(p)
#define M_OPAQUE(p)
#define M_PICK(T, N, p) vload##N(0, p)
#define M_PUT(T, N, v, p) vstore##N(v, 0, p)
#define M_CONVERT(T, x) convert_##T(x)
#define M_CHOOSE(mask, yes, no) select(no, yes, mask)
"""
_TYPEDEF = "typedef {base} {base}{n}_u __attribute__((ext_vector_type({n}), aligned({align})));"
_VECTOR_TYPES = {
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "int": 4,
    "uint": 4,
    "float": 4,
    "long": 8,
    "ulong": 8,
}


def prelude_of(kernels: Sequence[KernelCode], *, host_clang: bool) -> str:
    """Return the definitions that must precede the kernels in a program."""
    text = "".join(kernel.text for kernel in kernels)
    widths = [lanes for kernel in kernels for lanes in kernel.lanes]
    float64 = any(kernel.needs.float64 for kernel in kernels)
    sampler = SAMPLER if any(kernel.needs.image_reads for kernel in kernels) else ""
    return prelude(text, widths, host_clang=host_clang, float64=float64) + sampler


def prelude(text: str, widths: list[int], *, host_clang: bool, float64: bool = False) -> str:
    """Return the function definitions that kernel text needs, for the vector widths in use.

    Like a linker, this searches the text for function names, so custom kernels can call them, too.
    """
    stack = [name for name in _FUNCTIONS if f"{name}(" in text]
    stack += [name for mark, name in _ALSO.items() if mark in text]
    needed: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(_FUNCTIONS[name].needs)
    every = sorted({1, *widths})
    parts = [_CONTRACT, _header(every[1:], float64=float64) if host_clang else _PLAIN]
    functions = [function for name, function in _FUNCTIONS.items() if name in needed]
    parts += [f.at(width, host_clang=host_clang) for width in every for f in functions]
    return "".join(parts)


def _header(widths: list[int], *, float64: bool) -> str:
    """Return the macros of a program for PoCL, with the vector types in use."""
    types = _VECTOR_TYPES | ({"double": 8} if float64 else {})
    typedefs = [
        _TYPEDEF.format(base=base, n=n, align=align)
        for n in widths
        for base, align in types.items()
    ]
    return _HOST.format(typedefs="\n".join(typedefs), plain=_PLAIN)
