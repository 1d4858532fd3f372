"""Elementwise functions in OpenCL C, at vector speed, instead of the device's scalar library.

Polynomials were fitted by iteratively reweighted least squares on Chebyshev nodes (relative error
for exp, tanh and small erf; absolute for the tail of erf) and rounded to float32; the error bounds,
seen over the whole range against float64, are asserted in the tests: exp 2 ulp, tanh 3 ulp, erf 3
ulp.
"""

from __future__ import annotations

_FMA = """
M_INLINE {T} __attribute__((overloadable)) m_fma({T} a, {T} b, {T} c) {{
  #pragma OPENCL FP_CONTRACT ON
  return a * b + c;
}}
"""
_EXP = """
M_INLINE {T} __attribute__((overloadable)) m_exp({T} x) {{
  /* x = n*ln2 + r, |r| <= ln2/2; adding 1.5*2^23 rounds n and leaves it in the low bits;
     2^n in two factors so that overflow and denormals come out right */
  x = x < ({T})(-104.0f) ? ({T})(-104.0f) : x;
  x = x > ({T})(89.0f) ? ({T})(89.0f) : x;
  const {T} shifted = m_fma(x, ({T})(1.44269504088896341f), ({T})(12582912.0f));
  const {T} n = shifted - ({T})(12582912.0f);
  {T} r = m_fma(n, ({T})(-0.693145751953125f), x);
  r = m_fma(n, ({T})(-1.42860682030941723e-6f), r);
  {T} p = ({T})(1.3949911808595061e-3f);
  p = m_fma(p, r, ({T})(8.3689596503973e-3f));
  p = m_fma(p, r, ({T})(4.166621342301369e-2f));
  p = m_fma(p, r, ({T})(0.166665181517601f));
  p = m_fma(p, r, ({T})(0.5f));
  p = m_fma(p * r, r, r) + ({T})(1.0f);
  const {I} e = as_{I}(shifted) - 0x4b400000;
  const {I} half_e = e >> 1;
  p = p * as_{T}((half_e + 127) << 23);
  return p * as_{T}((e - half_e + 127) << 23);
}}
"""
_FABS = """
M_INLINE {T} __attribute__((overloadable)) m_fabs({T} x) {{
  return as_{T}(as_{I}(x) & 0x7fffffff);
}}
"""
_TANH = """
M_INLINE {T} __attribute__((overloadable)) m_tanh({T} x) {{
  const {T} a = as_{T}(as_{I}(x) & 0x7fffffff), t = x * x;
  {T} p = ({T})(-5.6599825620651245e-3f);
  p = m_fma(p, t, ({T})(2.059098146855831e-2f));
  p = m_fma(p, t, ({T})(-5.372106656432152e-2f));
  p = m_fma(p, t, ({T})(0.13331127166748047f));
  p = m_fma(p, t, ({T})(-0.3333325982093811f));
  const {T} small = m_fma(p * t, a, a);
  const {T} big = ({T})(1.0f) - ({T})(2.0f) / (m_exp(a + a) + ({T})(1.0f));
  return as_{T}(as_{I}(a < ({T})(0.625f) ? small : big) | (as_{I}(x) & (int)0x80000000));
}}
"""
_ERF = """
M_INLINE {T} __attribute__((overloadable)) m_erf({T} x) {{
  const {T} a = as_{T}(as_{I}(x) & 0x7fffffff), t = x * x;
  {T} p = ({T})(7.853855640860274e-5f);
  p = m_fma(p, t, ({T})(-8.010191959328949e-4f));
  p = m_fma(p, t, ({T})(5.18832728266716e-3f));
  p = m_fma(p, t, ({T})(-2.6853810995817184e-2f));
  p = m_fma(p, t, ({T})(0.1128358542919159f));
  p = m_fma(p, t, ({T})(-0.3761262595653534f));
  p = m_fma(p, t, ({T})(0.12837910652160645f));
  const {T} small = m_fma(p, a, a);
  const {T} c = a > ({T})(4.0f) ? ({T})(4.0f) : a;
  {T} q = ({T})(2.1496141926036216e-5f);
  q = m_fma(q, c, ({T})(-4.391066904645413e-4f));
  q = m_fma(q, c, ({T})(4.19361237436533e-3f));
  q = m_fma(q, c, ({T})(-2.5178970769047737e-2f));
  q = m_fma(q, c, ({T})(0.10837248712778091f));
  q = m_fma(q, c, ({T})(0.6332626342773438f));
  q = m_fma(q, c, ({T})(1.1295567750930786f));
  q = m_fma(q, c, ({T})(-1.8344461568631232e-4f));
  const {T} big = ({T})(1.0f) - m_exp(-q);
  return as_{T}(as_{I}(a < ({T})(1.0f) ? small : big) | (as_{I}(x) & (int)0x80000000));
}}
"""
# A half is computed as a float; a cast to half rounds to the nearest half, ties to even.
_ROUND_HALF = """
M_INLINE {T} __attribute__((overloadable)) m_round_half({T} x) {{
  ushort h[{N}];
  vstore_half{S}_rte(x, 0, (half*)h);
  return vload_half{S}(0, (half*)h);
}}
"""
_FUNCTIONS = {
    "m_fma": ((), _FMA),
    "m_fabs": ((), _FABS),
    "m_exp": (("m_fma",), _EXP),
    "m_tanh": (("m_exp",), _TANH),
    "m_erf": (("m_exp",), _ERF),
    "m_round_half": ((), _ROUND_HALF),
}
# Functions of the device's library are calls that PoCL does not inline (its library is built for
# another processor), so the hot paths use operators only. Unaligned vector types need clang, which
# the OpenCL compilers of PoCL, Qualcomm and NVIDIA are; others take the standard functions.
_HEADER = """#pragma OPENCL FP_CONTRACT OFF
#ifdef __clang__
#define M_INLINE static inline __attribute__((always_inline))
#define M_LOAD(T, N, p) (*(const __global T##N##_u*)(p))
#define M_STORE(T, N, v, p) (*(__global T##N##_u*)(p) = (v))
#define M_PICK(T, N, p) (*(const T##N##_u*)(p))
#define M_PUT(T, N, v, p) (*(T##N##_u*)(p) = (v))
#define M_CONVERT(T, x) __builtin_convertvector(x, T)
{typedefs}
#else
#define M_INLINE static
#define M_LOAD(T, N, p) vload##N(0, p)
#define M_STORE(T, N, v, p) vstore##N(v, 0, p)
#define M_PICK(T, N, p) vload##N(0, p)
#define M_PUT(T, N, v, p) vstore##N(v, 0, p)
#define M_CONVERT(T, x) convert_##T(x)
#endif
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


def prelude(text: str, widths: list[int]) -> str:
    """Return the function definitions that kernel text needs.

    Args:
        text: kernels.
        widths: vector widths in use; 1 for scalars.
    """
    needed: set[str] = set()
    stack = [name for name in _FUNCTIONS if f"{name}(" in text]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(_FUNCTIONS[name][0])
    vectors = [w for w in sorted(set(widths)) if w > 1]
    types = _VECTOR_TYPES | ({"double": 8} if "double" in text else {})
    typedefs = [
        _TYPEDEF.format(base=base, n=n, align=align)
        for n in vectors
        for base, align in types.items()
    ]
    parts = [_HEADER.format(typedefs="\n".join(typedefs))]
    for width in sorted(set(widths)):
        suffix = str(width) if width > 1 else ""
        for name, (_, template) in _FUNCTIONS.items():
            if name in needed:
                parts.append(
                    template.format(T=f"float{suffix}", I=f"int{suffix}", N=width, S=suffix)
                )
    return "".join(parts)
