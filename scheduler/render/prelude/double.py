"""Functions of doubles in OpenCL C: the library's, lane by lane.

PoCL's library is not called with vectors of doubles wider than 4: where LLVM splits such a vector
over registers, caller and library do not agree how (PoCL 3.0, LLVM 14, processors with AVX2: lanes
come back mixed, or the compiler gives up). Scalars are the same everywhere.
"""

from __future__ import annotations

from typing import Final

from scheduler.render.prelude.text import Function

_HEAD: Final = "\nM_INLINE double$S __attribute__((overloadable)) m_double_"
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
FUNCTIONS: Final = {
    f"m_double_{name}": Function((), _HEAD + _UNARY.format(name=name)) for name in _LIBRARY
} | {
    "m_double_pow": Function((), _HEAD + _POW),
    "m_double_fma": Function((), _HEAD + _FMA),
    "m_double_fabs": Function((), _HEAD + _FABS),
}
