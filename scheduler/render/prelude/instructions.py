"""Rounding, square roots, fp16 conversions and dot products of four bytes in OpenCL C.

Each is a single instruction on processors that have it. float64 functions call the device's
library.
"""

from __future__ import annotations

from typing import Final

from scheduler.render.prelude.text import Function, Host, unary

# --- Rounding, square roots, fp16 -------------------------------------------------------------


def _round(name: str, builtin: str, standard: str) -> Function:
    host = unary(name, f"  return __builtin_elementwise_{builtin}(x);")
    return Function((), unary(name, f"  return {standard}(x);"), (Host(host),))


_SQRT_512: Final = """
  typedef float lanes __attribute__((vector_size(64)));
  return __builtin_astype(__builtin_ia32_sqrtps512(__builtin_astype(x, lanes), 4), $T);
"""
_SQRT_256: Final = """
  typedef float lanes __attribute__((vector_size(32)));
  return __builtin_astype(__builtin_ia32_sqrtps256(__builtin_astype(x, lanes)), $T);
"""
_SQRT_TWICE: Final = """
  typedef float lanes __attribute__((vector_size(32)));
  const float8 low = __builtin_astype(
      __builtin_ia32_sqrtps256(__builtin_astype(x.lo, lanes)), float8);
  const float8 high = __builtin_astype(
      __builtin_ia32_sqrtps256(__builtin_astype(x.hi, lanes)), float8);
  return ($T)(low, high);
"""
_SQRT_128: Final = """
  typedef float lanes __attribute__((vector_size(16)));
  return __builtin_astype(__builtin_ia32_sqrtps(__builtin_astype(x, lanes)), $T);
"""
# PoCL selects its library by the processor's flags. If it compiles for fewer features, or if a
# vector is wider than a register, caller and library pass vectors in different registers. So no
# library function is called with a vector.
_SQRT_LANES: Final = """
  union { $T all; float each[$N]; } lanes;
  lanes.all = x;
  for (int i = 0; i < $N; i++) lanes.each[i] = __builtin_sqrtf(lanes.each[i]);
  return lanes.all;
"""
# clang has a generic builtin for one float only; for vectors, each width has its own.
_SQRT: Final = Function(
    (),
    unary("m_sqrt", "  return sqrt(x);"),
    (
        Host(unary("m_sqrt", "  return __builtin_sqrtf(x);"), width=1),
        Host(unary("m_sqrt", _SQRT_512), "defined(__AVX512F__)", 16),
        Host(unary("m_sqrt", _SQRT_TWICE), "defined(__AVX__)", 16),
        Host(unary("m_sqrt", _SQRT_256), "defined(__AVX__)", 8),
        Host(unary("m_sqrt", _SQRT_128), "defined(__SSE2__)", 4),
        Host(unary("m_sqrt", _SQRT_LANES)),
    ),
)
# fp16 is computed as float; a cast to half rounds to nearest, ties to even. clang's vector
# conversions are instructions with F16C and on 64-bit ARM. A single half uses one lane of four.
_HAS_HALF: Final = "(defined(__F16C__) || defined(__aarch64__))"
_ONE_HALF: Final = """
typedef __fp16 m_one_half __attribute__((ext_vector_type(4)));
M_INLINE float m_of_half(ushort bits) {
  return __builtin_convertvector(__builtin_astype((ushort4)(bits), m_one_half), float4).x;
}
M_INLINE ushort m_to_half(float x) {
  return __builtin_astype(__builtin_convertvector((float4)(x), m_one_half), ushort4).x;
}
#define M_LOAD_HALF_1(p) m_of_half(*(const __global ushort*)(p))
#define M_STORE_HALF_1(v, p) (*(__global ushort*)(p) = m_to_half(v))
M_INLINE $T __attribute__((overloadable)) m_round_half($T x) { return m_of_half(m_to_half(x)); }
"""
_HALF_VECTORS: Final = """
typedef __fp16 m_half$N __attribute__((ext_vector_type($N)));
typedef __fp16 m_half$N_u __attribute__((ext_vector_type($N), aligned(2)));
#define M_LOAD_HALF_$N(p) __builtin_convertvector(*(const __global m_half$N_u*)(p), $T)
#define M_STORE_HALF_$N(v, p) (*(__global m_half$N_u*)(p) = __builtin_convertvector(v, m_half$N))
"""
_HALVES: Final = _HALF_VECTORS + unary(
    "m_round_half",
    "  return __builtin_convertvector(__builtin_convertvector(x, m_half$N), $T);",
)
# LLVM 14 converts lane by lane unless there is a load or store next to the conversion, because it
# has no vectors of half. The instructions convert 8 lanes.
_ROUND_8: Final = """  typedef float lanes __attribute__((vector_size(32)));
  return __builtin_astype(__builtin_ia32_vcvtph2ps256(
      __builtin_ia32_vcvtps2ph256(__builtin_astype(x, lanes), 0)), $T);
"""
_ROUND_16: Final = """  typedef float lanes __attribute__((vector_size(32)));
  const float8 low = __builtin_astype(__builtin_ia32_vcvtph2ps256(
      __builtin_ia32_vcvtps2ph256(__builtin_astype(x.lo, lanes), 0)), float8);
  const float8 high = __builtin_astype(__builtin_ia32_vcvtph2ps256(
      __builtin_ia32_vcvtps2ph256(__builtin_astype(x.hi, lanes), 0)), float8);
  return ($T)(low, high);
"""
# As for square roots, no vector conversions of the library are called.
_HALF_LANES: Final = """
M_INLINE $T m_load_half_$N(const __global half* p) {
  union { $T all; float each[$N]; } lanes;
  for (int i = 0; i < $N; i++) lanes.each[i] = vload_half(i, p);
  return lanes.all;
}
M_INLINE void m_store_half_$N($T x, __global half* p) {
  union { $T all; float each[$N]; } lanes;
  lanes.all = x;
  for (int i = 0; i < $N; i++) vstore_half_rte(lanes.each[i], i, p);
}
#define M_LOAD_HALF_$N(p) m_load_half_$N(p)
#define M_STORE_HALF_$N(v, p) m_store_half_$N(v, p)
M_INLINE $T __attribute__((overloadable)) m_round_half($T x) {
  union { $T all; float each[$N]; } lanes;
  lanes.all = x;
  for (int i = 0; i < $N; i++) lanes.each[i] = m_round_half(lanes.each[i]);
  return lanes.all;
}
"""
_HALF: Final = """
#define M_LOAD_HALF_$N(p) vload_half$S(0, p)
#define M_LOAD_HALF_WHOLE_$N(p) vloada_half$S(0, p)
#define M_STORE_HALF_$N(v, p) vstore_half$S_rte(v, 0, p)
#define M_STORE_HALF_WHOLE_$N(v, p) vstorea_half$S_rte(v, 0, p)
M_INLINE $T __attribute__((overloadable)) m_round_half($T x) {
  ushort h[$N];
  vstore_half$S_rte(x, 0, (half*)h);
  return vload_half$S(0, (half*)h);
}
"""

# --- Dot products of four bytes ---------------------------------------------------------------

# The form without an addend.
_DOT_ALONE: Final = """
M_INLINE $I __attribute__((overloadable)) m_dot4(u$I a, $I b) { return m_dot4(a, b, ($I)(0)); }
"""
_DOT_HEAD: Final = "\nM_INLINE $I __attribute__((overloadable)) m_dot4(u$I a, $I b, $I c) {\n"
# Elsewhere this uses cl_khr_integer_dot_product, if the device has it for packed bytes.
_PACKED: Final = "__opencl_c_integer_dot_product_input_4x8bit_packed"
_DOT_PLAIN: Final = f"""{_DOT_HEAD}#ifdef {_PACKED}
  union {{ u$I all; uint each[$N]; }} x, y;
  union {{ $I all; int each[$N]; }} sum;
  x.all = a;
  y.all = as_u$I(b);
  sum.all = c;
  for (int i = 0; i < $N; i++) sum.each[i] += dot_4x8packed_us_int(x.each[i], y.each[i]);
  return sum.all;
#else
  $I sum = c;
  for (int i = 0; i < 32; i += 8) sum += as_$I((a >> i) & 255) * ((b << (24 - i)) >> 24);
  return sum;
#endif
}}
{_DOT_ALONE}"""


def _vnni(bits: int) -> str:
    """Return m_dot4 with the instruction of AVX512-VNNI and AVX-VNNI (Intel SDM, VPDPBUSD)."""
    return (
        f"{_DOT_HEAD}  return __builtin_astype(__builtin_ia32_vpdpbusd{bits}("
        "c, __builtin_astype(a, $I), b), $I);\n}\n" + _DOT_ALONE
    )


# Lanes left over at the end of an axis are computed one by one.
_VNNI_ALONE: Final = (
    f"{_DOT_HEAD}  const int4 x = (int4)(as_int(a), 0, 0, 0), y = (int4)(b, 0, 0, 0);\n"
    "  const int4 sum = (int4)(c, 0, 0, 0);\n"
    "  return __builtin_astype(__builtin_ia32_vpdpbusd128(sum, x, y), int4).s0;\n}\n" + _DOT_ALONE
)
_VL: Final = "(defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__))"
_DOT: Final = Function(
    (),
    _DOT_PLAIN,
    (
        Host(_vnni(512), "defined(__AVX512VNNI__)", 16),
        Host(_vnni(256), _VL, 8),
        Host(_vnni(128), _VL, 4),
        Host(_VNNI_ALONE, _VL, 1),
    ),
)

# --- float64 functions of the device's library, called lane by lane ---------------------------
# PoCL's library must not be called with float64 vectors wider than 4. If LLVM splits such a vector
# over registers, caller and library disagree on how (PoCL 3.0, LLVM 14, processors with AVX2: lanes
# are mixed up, or the compiler fails). Scalars work everywhere.

_DOUBLE_HEAD: Final = "\nM_INLINE double$S __attribute__((overloadable)) m_double_"
_UNARY: Final = """{name}(double$S x) {{
#if $N == 1
  return {name}(x);
#else
  union {{ double$S all; double each[$N]; }} lanes;
  lanes.all = x;
  for (int i = 0; i < $N; i++) lanes.each[i] = {name}(lanes.each[i]);
  return lanes.all;
#endif
}}
"""
_POW: Final = """pow(double$S x, double$S y) {
#if $N == 1
  return pow(x, y);
#else
  union { double$S all; double each[$N]; } lanes, powers;
  lanes.all = x;
  powers.all = y;
  for (int i = 0; i < $N; i++) lanes.each[i] = pow(lanes.each[i], powers.each[i]);
  return lanes.all;
#endif
}
"""
_FMA: Final = """fma(double$S a, double$S b, double$S c) {
  #pragma OPENCL FP_CONTRACT ON
  return a * b + c;
}
"""
_FABS: Final = """fabs(double$S x) {
  return as_double$S(as_long$S(x) & 0x7fffffffffffffffL);
}
"""
_LIBRARY: Final = (
    *("sqrt", "exp", "log", "sin", "cos", "tanh", "erf"),
    *("floor", "ceil", "rint", "trunc"),
)
_DOUBLES: Final = {
    f"m_double_{name}": Function((), _DOUBLE_HEAD + _UNARY.format(name=name)) for name in _LIBRARY
} | {
    "m_double_pow": Function((), _DOUBLE_HEAD + _POW),
    "m_double_fma": Function((), _DOUBLE_HEAD + _FMA),
    "m_double_fabs": Function((), _DOUBLE_HEAD + _FABS),
}

# In the order of definition in the program.
FUNCTIONS: Final = {
    "m_dot4": _DOT,
    **_DOUBLES,
    "m_floor": _round("m_floor", "floor", "floor"),
    "m_ceil": _round("m_ceil", "ceil", "ceil"),
    "m_rint": _round("m_rint", "roundeven", "rint"),
    "m_trunc": _round("m_trunc", "trunc", "trunc"),
    "m_sqrt": _SQRT,
    "m_round_half": Function(
        (),
        _HALF,
        (
            Host(_ONE_HALF, _HAS_HALF, 1),
            Host(_HALF_VECTORS + unary("m_round_half", _ROUND_8), "defined(__F16C__)", 8),
            Host(_HALF_VECTORS + unary("m_round_half", _ROUND_16), "defined(__F16C__)", 16),
            Host(_HALVES, _HAS_HALF),
            Host(_HALF_LANES, "$N > 1"),
        ),
    ),
}
