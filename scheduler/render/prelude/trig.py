"""sin and cos in OpenCL C: range reduction that is right for every float, and polynomials.

Up to 48000 x - n*pi/2 is computed with pi/2 in three parts (Cody and Waite): the first step is
exact. Beyond, lane by lane: the product of the 24 bits of x and the bits of 2/pi that matter, in
integers (Payne and Hanek, 1983).
"""

from __future__ import annotations

from typing import Final

from scheduler.render.prelude.text import ABSOLUTE, Function, horner, number

_LIMIT: Final = 48000.0  # absolute values beyond it are reduced by `m_far`
# sin(r) = r + r t s(t), cos(r) = 1 - t/2 + t^2 c(t), t = r^2, |r| <= pi/4; relative errors of the
# approximations 3.6e-9 and 9.6e-11.
_SIN_S: Final = (-0.00019516656175255775, 0.008332173340022564, -0.16666655242443085)
_COS_C: Final = (2.4437729734927416e-05, -0.001388736185617745, 0.04166664555668831)

# After 32 zeros the first 224 bits of 2/pi. `acc` is x*2/pi in units of 2^-62 modulo 4.
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
FUNCTIONS: Final = {
    "m_any": Function((), _ANY),
    "m_far": Function(("m_fma", "m_fused"), _FAR),
    "m_reduce": Function(("m_fma", "m_fused", "m_any", "m_far"), _REDUCE),
    "m_wave": Function(("m_fma",), _WAVE),
    "m_sin": Function(_NEEDS, _wave("m_sin", 0)),
    "m_cos": Function(_NEEDS, _wave("m_cos", 1)),
}
