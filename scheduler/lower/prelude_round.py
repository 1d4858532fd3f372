"""Rounding, square root and halves in OpenCL C: one instruction each on processors that have it.

Where the kernels are compiled by clang for x86 or ARM (M_HOST), its built-ins are instructions;
elsewhere the standard functions are.
"""

from __future__ import annotations

from typing import Final

from scheduler.lower.prelude_text import Function, unary

HEADER: Final = """
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))
#if __has_builtin(__builtin_elementwise_roundeven) && __has_builtin(__builtin_elementwise_trunc)
#define M_HOST
#endif
#endif
"""


def _round(name: str, builtin: str, standard: str) -> Function:
    host = unary(name, f"  return __builtin_elementwise_{builtin}(x);").strip()
    other = unary(name, f"  return {standard}(x);").strip()
    return Function((), f"\n#ifdef M_HOST\n{host}\n#else\n{other}\n#endif\n")


# clang knows the instruction for one float; for vectors it is named by width. PoCL's own function
# for vectors wider than the processor's aborts the process.
_SQRT: Final = """
#if defined(M_HOST) && $N == 1
M_INLINE $T __attribute__((overloadable)) m_sqrt($T x) { return __builtin_sqrtf(x); }
#elif defined(M_HOST) && defined(__AVX512F__) && $N == 16
M_INLINE $T __attribute__((overloadable)) m_sqrt($T x) {
  typedef float lanes __attribute__((vector_size(64)));
  return __builtin_astype(__builtin_ia32_sqrtps512(__builtin_astype(x, lanes), 4), $T);
}
#elif defined(M_HOST) && defined(__AVX__) && $N == 8
M_INLINE $T __attribute__((overloadable)) m_sqrt($T x) {
  typedef float lanes __attribute__((vector_size(32)));
  return __builtin_astype(__builtin_ia32_sqrtps256(__builtin_astype(x, lanes)), $T);
}
#elif defined(M_HOST) && defined(__AVX__) && $N == 16
M_INLINE $T __attribute__((overloadable)) m_sqrt($T x) {
  typedef float lanes __attribute__((vector_size(32)));
  $T root;
  root.lo = __builtin_astype(__builtin_ia32_sqrtps256(__builtin_astype(x.lo, lanes)), float8);
  root.hi = __builtin_astype(__builtin_ia32_sqrtps256(__builtin_astype(x.hi, lanes)), float8);
  return root;
}
#elif defined(M_HOST) && $N > 4
M_INLINE $T __attribute__((overloadable)) m_sqrt($T x) {
  $T root;
  for (int i = 0; i < $N; i++) root[i] = __builtin_sqrtf(x[i]);
  return root;
}
#else
M_INLINE $T __attribute__((overloadable)) m_sqrt($T x) { return sqrt(x); }
#endif
"""
# A half is computed as a float; a cast to half rounds to the nearest half, ties to even. clang's
# conversions of vectors are instructions with F16C, and on 64 bit ARM; one half is a lane of four.
_HALF: Final = """
#if defined(__clang__) && (defined(__F16C__) || defined(__aarch64__))
#if $N == 1
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
#else
typedef __fp16 m_half$N __attribute__((ext_vector_type($N)));
typedef __fp16 m_half$N_u __attribute__((ext_vector_type($N), aligned(2)));
#define M_LOAD_HALF_$N(p) __builtin_convertvector(*(const __global m_half$N_u*)(p), $T)
#define M_STORE_HALF_$N(v, p) (*(__global m_half$N_u*)(p) = __builtin_convertvector(v, m_half$N))
M_INLINE $T __attribute__((overloadable)) m_round_half($T x) {
  return __builtin_convertvector(__builtin_convertvector(x, m_half$N), $T);
}
#endif
#else
#define M_LOAD_HALF_$N(p) vload_half$S(0, p)
#define M_STORE_HALF_$N(v, p) vstore_half$S_rte(v, 0, p)
M_INLINE $T __attribute__((overloadable)) m_round_half($T x) {
  ushort h[$N];
  vstore_half$S_rte(x, 0, (half*)h);
  return vload_half$S(0, (half*)h);
}
#endif
"""
FUNCTIONS: Final = {
    "m_floor": _round("m_floor", "floor", "floor"),
    "m_ceil": _round("m_ceil", "ceil", "ceil"),
    "m_rint": _round("m_rint", "roundeven", "rint"),
    "m_trunc": _round("m_trunc", "trunc", "trunc"),
    "m_sqrt": Function((), _SQRT),
    "m_round_half": Function((), _HALF),
}
