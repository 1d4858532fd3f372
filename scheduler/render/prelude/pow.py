"""pow in OpenCL C: 2^(y log2|x|), the logarithm in two floats, and the special cases of IEEE 754.

The error of y log2|x|, up to 150 in size, is that of the result: log2|x| needs 2^-32 of relative
precision, so its terms up to the cube are sums of two floats.
"""

from __future__ import annotations

from typing import Final

from scheduler.render.prelude.text import ABSOLUTE, Function, horner, number

# log2(m) = K s + s^3 q(s^2), s = (m - 1)/(m + 1), K = 2/ln 2, sqrt(1/2) <= m < sqrt(2); relative
# error of the approximation 4.8e-12.
_LOG2_Q: Final = (
    0.3402594327926636,
    0.41170430183410645,
    0.5770828723907471,
    0.9617967009544373,
)
# 2^r = 1 + r q(r), |r| <= 1/2; relative error of the approximation 1.9e-9.
_EXP2_Q: Final = (
    0.00015476443513762206,
    0.001340040354989469,
    0.009618003852665424,
    0.055503275245428085,
    0.24022650718688965,
    0.6931471824645996,
    1.0,
)
_LOG2: Final = f"""
M_INLINE $T __attribute__((overloadable)) m_log2($T x, $T* low) {{
  /* x > 0; high + low, the size of low at most half a unit in the last place of high */
  const $I tiny = x < ($T)(1.17549435e-38f);
  const $I ix = as_$I(M_CHOOSE(tiny, x * ($T)(8388608.0f), x)) - 0x3f3504f3;
  const $T bias = M_CHOOSE(tiny, ($T)(12582935.0f), ($T)(12582912.0f));
  const $T e = as_$T((ix >> 23) + 0x4b400000) - bias;
  const $T m = as_$T((ix & 0x7fffff) + 0x3f3504f3);
  const $T f = m - {number(1.0)}, d = m + {number(1.0)};
  const $T rest = m - (d - {number(1.0)});
  const $T inverse = {number(1.0)} / d;
  const $T s = f * inverse;
  const $T s_low = m_fma(-s, rest, m_fused(-s, d, f)) * inverse;
  const $T t = s * s;
{horner("u", "t", _LOG2_Q[:-1])}
  const $T q0 = {number(_LOG2_Q[-1])}, q = m_fma(u, t, q0), q_low = m_fused(u, t, q0 - q);
  const $T cube = s * t;
  const $T cube_low = m_fma(s, m_fused(s, s, -t), m_fused(s, t, -cube));
  const $T k = ($T)(0x1.715476p+1f);
  const $T p = s * k;
  $T p_low = m_fused(s, k, -p);
  p_low = m_fma(s, ($T)(0x1.4ae0c0p-25f), p_low);
  p_low = m_fma(s_low, m_fma(t, k, k), p_low); /* the derivative is K / (1 - t) */
  p_low = m_fma(cube, q_low, m_fma(cube_low, q, p_low));
  p_low = m_fma(cube, q, p_low);
  const $T sum = e + p;
  p_low = p_low + ((e - sum) + p);
  const $T high = sum + p_low;
  *low = p_low - (high - sum);
  return high;
}}
"""
_POW: Final = f"""
M_INLINE $T __attribute__((overloadable)) m_pow($T x, $T y) {{
  const $T ax = {ABSOLUTE.format("x")}, zero = {number(0.0)}, inf = ($T)(INFINITY);
  $T low;
  const $T high = m_log2(ax, &low);
  /* beyond 2^40 any power of what is not 1 overflows or underflows */
  $T c = M_CHOOSE(y < ($T)(-0x1p40f), ($T)(-0x1p40f), y);
  c = M_CHOOSE(c > ($T)(0x1p40f), ($T)(0x1p40f), c);
  const $T product = c * high;
  $T z = M_CHOOSE(product < {number(-160.0)}, {number(-160.0)}, product);
  z = M_CHOOSE(z > {number(130.0)}, {number(130.0)}, z);
  const $T z_low = m_fma(c, low, m_fused(c, high, -product));
  const $T n = (z + {number(12582912.0)}) - {number(12582912.0)};
  const $T r = (z - n) + M_CHOOSE(z == product, z_low, zero);
{horner("p", "r", _EXP2_Q)}
  p = m_scale(p, n);
  const $T edge = M_CHOOSE(y < zero, inf, zero), other = M_CHOOSE(y < zero, zero, inf);
  p = M_CHOOSE(ax == zero, edge, p);
  p = M_CHOOSE(ax == inf, other, p);
  p = M_CHOOSE(y == y, p, y);
  const $I whole = m_trunc(y) == y;
  const $T half_y = y * {number(0.5)};
  const $T negative = M_CHOOSE(m_trunc(half_y) != half_y, -p, p);
  p = M_CHOOSE(as_$I(x) < 0, M_CHOOSE(whole, negative, p), p);
  p = M_CHOOSE(x < zero, M_CHOOSE(x == -inf, p, M_CHOOSE(whole, p, ($T)(NAN))), p);
  p = M_CHOOSE(x == x, p, x);
  p = M_CHOOSE(y == zero, {number(1.0)}, p);
  return M_CHOOSE(x == {number(1.0)}, {number(1.0)}, p);
}}
"""
FUNCTIONS: Final = {
    "m_log2": Function(("m_fma", "m_fused"), _LOG2),
    "m_pow": Function(("m_fma", "m_fused", "m_log2", "m_scale", "m_trunc"), _POW),
}
