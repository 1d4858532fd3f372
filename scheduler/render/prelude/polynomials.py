"""exp, log, tanh, erf, pow, sin and cos as polynomials in OpenCL C.

All coefficients except those of sin and cos were fitted by iteratively reweighted least squares
(Lawson) on Chebyshev nodes against float64. The fits minimize the relative error of the result. The
coefficients were then rounded to float32.
"""

from __future__ import annotations

from typing import Final

from scheduler.render.prelude.text import (
    ABSOLUTE,
    SIGN,
    Function,
    Host,
    horner,
    number,
    then,
    two_chains,
    unary,
)

# x = n*ln2 + r with |r| <= ln2/2. Adding 1.5*2^23 rounds n to an integer. ln2 is split into two
# parts, the first with few bits, so that n times it is exact. e^r = 1 + r + r^2 q(r), with a
# relative approximation error of 3.1e-9.
_EXP_Q: Final = (
    0.0013814539415761828,
    0.00836874544620514,
    0.04166838899254799,
    0.1666652113199234,
    0.4999999403953552,
)
_EXP = unary(
    "m_exp",
    f"""
  /* x = n*ln2 + r; adding 1.5*2^23 rounds n */
  x = M_CHOOSE(x < {number(-104.0)}, {number(-104.0)}, x);
  x = M_CHOOSE(x > {number(89.0)}, {number(89.0)}, x);
  const $T shifted = m_fma(x, ($T)(1.44269504088896341f), {number(12582912.0)});
  const $T n = shifted - {number(12582912.0)};
  $T r = m_fma(n, {number(-0.693145751953125)}, x);
  r = m_fma(n, ($T)(-1.42860682030941723e-6f), r);
{horner("p", "r", (*_EXP_Q, 1.0))}
  p = m_fused(p, r, {number(1.0)});
  return m_scale(p, n);
""",
)
# p * 2^n for integer n from -252 to 254. Two factors make overflow correct and round denormals
# only once. AVX-512 has an instruction with the same result.
_SCALE_AVX512 = """
typedef float m_zmm __attribute__((vector_size(64)));
M_INLINE $T __attribute__((overloadable)) m_scale($T p, $T n) {
  const m_zmm a = __builtin_astype(p, m_zmm), b = __builtin_astype(n, m_zmm);
  return __builtin_astype(__builtin_ia32_scalefps512_mask(a, b, a, (ushort)-1, 4), $T);
}
"""
_SCALE = """
M_INLINE $T __attribute__((overloadable)) m_scale($T p, $T n) {
  /* 12583166 = 1.5*2^23 + 254: the low bits hold n + 254, the sum of two biased exponents */
  const $I both = as_$I(n + ($T)(12583166.0f));
  const $I half_of = (both << 22) & 0x7f800000;
  return p * as_$T(half_of) * as_$T((both << 23) - half_of);
}
"""
# log(m*2^e) = e*ln2 + log(m), sqrt(1/2) <= m < sqrt(2); log(1+f) = f - f^2/2 + f^3 q(f), with a
# relative approximation error of 5.8e-9.
_LOG_Q: Final = (
    -0.07634496688842773,
    0.1276157647371292,
    -0.13160182535648346,
    0.14201757311820984,
    -0.16623356938362122,
    0.20001226663589478,
    -0.2500081956386566,
    0.3333333134651184,
)
# ix is the difference between the bits of x and those of sqrt(1/2). Denormals are scaled first.
_SPLIT = """
  const $I tiny = x < ($T)(1.17549435e-38f);
  const $T scaled = M_CHOOSE(tiny, x * ($T)(8388608.0f), x);
  const $I ix = as_$I(scaled) - 0x3f3504f3;
  const $T bias = M_CHOOSE(tiny, ($T)(12582935.0f), ($T)(12582912.0f));
  const $T e = as_$T((ix >> 23) + 0x4b400000) - bias;
  const $T m = as_$T((ix & 0x7fffff) + 0x3f3504f3);
  const $T f = m - ($T)(1.0f);
"""
_LOG = unary(
    "m_log",
    f"""{_SPLIT}
  const $T f2 = f * f;
{horner("p", "f", _LOG_Q)}
  p = m_fma(e, {number(-2.12194440e-4)}, p * f * f2);
  p = m_fma(f2, {number(-0.5)}, p);
  p = m_fma(e, {number(0.693359375)}, f + p);
  p = M_CHOOSE(x == ($T)(INFINITY), x, p);
  return M_CHOOSE(x > {number(0.0)}, p, M_CHOOSE(x == {number(0.0)}, ($T)(-INFINITY), ($T)(NAN)));
""",
)
# tanh(x) = em1 / (em1 + 2), em1 = e^(2x) - 1 = 2^n (r + r^2 q(r)) + (2^n - 1), for |x|. Beyond 10
# it rounds to 1. The quotient cannot exceed 1. 12583039 = 1.5*2^23 + 127: the low bits hold the
# biased exponent of 2^n.
_TANH = unary(
    "m_tanh",
    f"""
  const $T two = {ABSOLUTE.format("x + x")};
  const $T a = M_CHOOSE(two > {number(20.0)}, {number(20.0)}, two);
  const $T shifted = m_fma(a, ($T)(1.44269504088896341f), {number(12583039.0)});
  const $T n = shifted - {number(12583039.0)};
  const $T r = m_fma(n, ($T)(-0.693147180559945309f), a);
{horner("q", "r", _EXP_Q)}
  const $T power = as_$T(as_$I(shifted) << 23);
  const $T em1 = m_fma(m_fma(r * r, q, r), power, power - {number(1.0)});
  return as_$T(as_$I(em1 / (em1 + {number(2.0)})) | {SIGN.format("x")});
""",
)
_ERF_P: Final = (
    0.000535630970261991,
    -0.0013540055369958282,
    0.0008543460862711072,
    -0.0011459997622296214,
    0.00520086707547307,
    -0.009984814561903477,
    0.014217442832887173,
    -0.02173759788274765,
    0.03307689353823662,
    -0.04598461836576462,
    0.0598902590572834,
    -0.07469352334737778,
    0.09020795673131943,
    -0.10771283507347107,
    0.13167518377304077,
    -0.1765761822462082,
    0.35353100299835205,
)
_ERF_Q: Final = (
    7.853855640860274e-5,
    -8.010191959328949e-4,
    5.18832728266716e-3,
    -2.6853810995817184e-2,
    0.1128358542919159,
    -0.3761262595653534,
    0.12837910652160645,
)
_ERF = unary(
    "m_erf",
    f"""
  const $T t = x * x;
{horner("q", "t", _ERF_Q)}
  const $T small = m_fma(q, x, x);
  const $I is_small = {ABSOLUTE.format("x")} < {number(1.0)};
  x = M_CHOOSE(x < {number(-4.0)}, {number(-4.0)}, x);
  x = M_CHOOSE(x > {number(4.0)}, {number(4.0)}, x);
  const $T s = m_fma(x * x, {number(0.125)}, {number(-1.0)});
{two_chains("p", "s", _ERF_P[:-4])}
{then("p", "s", _ERF_P[-4:])}
  x = x * p;
  x = M_CHOOSE(x < {number(-1.0)}, {number(-1.0)}, x);
  x = M_CHOOSE(x > {number(1.0)}, {number(1.0)}, x);
  return M_CHOOSE(is_small, small, x);
""",
)
# gelu(x) = x (1/2 + y p(y^2/8 - 1)), y = x / sqrt(2), limited to 4. The approximation of the normal
# distribution has an absolute error of 7.3e-8. At y = -4 the sum is exactly 0.
_GELU_P: Final = (
    0.0011998534901067615,
    -0.002966723870486021,
    0.0018269545398652554,
    -0.001620673923753202,
    0.0073592448607087135,
    -0.01327562890946865,
    0.016607249155640602,
    -0.02207791432738304,
    0.02988170087337494,
    -0.03752356395125389,
    0.045117225497961044,
    -0.05384155735373497,
    0.06583677232265472,
    -0.08828844130039215,
    0.17676550149917603,
)
_GELU = unary(
    "m_gelu",
    f"""
  $T y = x * ($T)(0.707106781186547524f);
  y = M_CHOOSE(y < {number(-4.0)}, {number(-4.0)}, y);
  y = M_CHOOSE(y > {number(4.0)}, {number(4.0)}, y);
  const $T s = m_fma(y * y, {number(0.125)}, {number(-1.0)});
{two_chains("p", "s", _GELU_P)}
  return x * m_fma(y, p, {number(0.5)});
""",
)

# --- pow: 2^(y log2|x|), the logarithm in two floats, and the special cases of IEEE 754 -------
#
# |y log2|x|| is up to 150, and its error is that of the result. So log2|x| needs a relative
# precision of 2^-32, and its terms up to the cube are sums of two floats.

# log2(m) = K s + s^3 q(s^2), s = (m - 1)/(m + 1), K = 2/ln 2, sqrt(1/2) <= m < sqrt(2), with a
# relative approximation error of 4.8e-12.
_LOG2_Q: Final = (
    0.3402594327926636,
    0.41170430183410645,
    0.5770828723907471,
    0.9617967009544373,
)
# 2^r = 1 + r q(r), |r| <= 1/2, with a relative approximation error of 1.9e-9.
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

# --- sin and cos, with a range reduction that is correct for every float ----------------------
#
# Up to 48000, x - n*pi/2 is computed with pi/2 in three parts (Cody and Waite); the first step is
# exact. Larger values are reduced lane by lane, by an integer product of the 24 bits of x with the
# relevant bits of 2/pi (Payne and Hanek, 1983).

_LIMIT: Final = 48000.0  # larger absolute values are reduced by `m_far`
# sin(r) = r + r t s(t), cos(r) = 1 - t/2 + t^2 c(t), t = r^2, |r| <= pi/4, with relative
# approximation errors of 3.6e-9 and 9.6e-11.
_SIN_S: Final = (-0.00019516656175255775, 0.008332173340022564, -0.16666655242443085)
_COS_C: Final = (2.4437729734927416e-05, -0.001388736185617745, 0.04166664555668831)

# The first 224 bits of 2/pi, after 32 zeros. `acc` is x*2/pi in units of 2^-62, modulo 4.
_FAR: Final = """
#if $N == 1
__constant uint m_two_over_pi[8] = {
  0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
  0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
M_INLINE float m_far(float x, int* quadrant) {
  const int bits = as_int(x);
  const int e = ((bits >> 23) & 0xff) - 150;
  if (e == 105) { *quadrant = 0; return NAN; }
  const ulong m = (bits & 0x7fffff) | 0x800000;
  const int word = (30 + e) >> 5, shift = (30 + e) & 31;
  uint w[3];
  for (int i = 0; i < 3; i++) {
    const ulong two = ((ulong)m_two_over_pi[word + i] << 32) | m_two_over_pi[word + i + 1];
    w[i] = (uint)(two >> (32 - shift));
  }
  const ulong acc = ((m * w[0]) << 32) + m * w[1] + ((m * w[2]) >> 32);
  const long f = (long)(acc << 2);
  *quadrant = (int)(acc >> 62) + (f < 0);
  const float high = (float)f, low = (float)(f - (long)high);
  const float unit = 0x1.921fb6p-64f, rest = -0x1.777a5cp-89f; /* pi/2 * 2^-64 in two parts */
  const float p = high * unit;
  const float r = p + m_fma(low, unit, m_fma(high, rest, m_fused(high, unit, -p)));
  if (bits < 0) { *quadrant = -*quadrant; return -r; }
  return r;
}
#endif
"""
_ANY: Final = """
M_INLINE int __attribute__((overloadable)) m_any($I mask) {
$ANY
}
"""
_REDUCE: Final = f"""
M_INLINE $T __attribute__((overloadable)) m_reduce($T x, $I* quadrant) {{
  const $T shifted = m_fma(x, ($T)(0.636619772367581343f), {number(12582912.0)});
  const $T n = shifted - {number(12582912.0)};
  $T r = m_fused(n, ($T)(-0x1.921fb4p+0f), x);
  r = m_fused(n, ($T)(-0x1.4442d0p-24f), r);
  r = m_fused(n, ($T)(-0x1.846988p-48f), r);
  *quadrant = as_$I(shifted);
  const $I far = !({ABSOLUTE.format("x")} <= {number(_LIMIT)});
  if (m_any(far)) {{
    union {{ $T v; float s[$N]; }} value, reduced;
    union {{ $I v; int s[$N]; }} turns;
    value.v = x; reduced.v = r; turns.v = *quadrant;
    for (int i = 0; i < $N; i++)
      if (!(as_float(as_int(value.s[i]) & 0x7fffffff) <= {_LIMIT}f))
        reduced.s[i] = m_far(value.s[i], turns.s + i);
    r = reduced.v;
    *quadrant = turns.v;
  }}
  return r;
}}
"""
_WAVE: Final = f"""
M_INLINE $T __attribute__((overloadable)) m_wave($T r, $I quadrant) {{
  const $T t = r * r;
{horner("s", "t", _SIN_S)}
{horner("c", "t", _COS_C)}
  const $T sine = M_CHOOSE(r == {number(0.0)}, r, m_fma(r * t, s, r)); /* keeps the sign of zero */
  const $T cosine = m_fma(t * t, c, m_fma(t, {number(-0.5)}, {number(1.0)}));
  const $T value = M_CHOOSE((quadrant & 1) != 0, cosine, sine);
  return as_$T(as_$I(value) ^ ((quadrant & 2) << 30));
}}
"""


def _wave(name: str, quarter: int) -> str:
    more = f" + {quarter}" if quarter else ""
    return f"""
M_INLINE $T __attribute__((overloadable)) {name}($T x) {{
  $I quadrant;
  const $T r = m_reduce(x, &quadrant);
  return m_wave(r, quadrant{more});
}}
"""


_NEEDS: Final = ("m_fma", "m_reduce", "m_wave")
# In the order of definition in the program.
FUNCTIONS: Final = {
    "m_scale": Function((), _SCALE, (Host(_SCALE_AVX512, "defined(__AVX512F__)", 16),)),
    "m_exp": Function(("m_fma", "m_fused", "m_scale"), _EXP),
    "m_log": Function(("m_fma",), _LOG),
    "m_tanh": Function(("m_fma",), _TANH),
    "m_erf": Function(("m_fma",), _ERF),
    "m_gelu": Function(("m_fma",), _GELU),
    "m_any": Function((), _ANY),
    "m_far": Function(("m_fma", "m_fused"), _FAR),
    "m_reduce": Function(("m_fma", "m_fused", "m_any", "m_far"), _REDUCE),
    "m_wave": Function(("m_fma",), _WAVE),
    "m_sin": Function(_NEEDS, _wave("m_sin", 0)),
    "m_cos": Function(_NEEDS, _wave("m_cos", 1)),
    "m_log2": Function(("m_fma", "m_fused"), _LOG2),
    "m_pow": Function(("m_fma", "m_fused", "m_log2", "m_scale", "m_trunc"), _POW),
}
