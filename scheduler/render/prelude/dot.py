"""Dot products of four bytes in OpenCL C: one instruction on processors that have it."""

from __future__ import annotations

from typing import Final

from scheduler.render.prelude.text import Function, Host

# Without a sum to begin with.
_ALONE: Final = """
M_INLINE $I __attribute__((overloadable)) m_dot4(u$I a, $I b) { return m_dot4(a, b, ($I)(0)); }
"""
_HEAD: Final = "\nM_INLINE $I __attribute__((overloadable)) m_dot4(u$I a, $I b, $I c) {\n"
# Elsewhere the instruction of cl_khr_integer_dot_product, if a device has it for packed bytes.
_PACKED: Final = "__opencl_c_integer_dot_product_input_4x8bit_packed"
_PLAIN: Final = f"""{_HEAD}#ifdef {_PACKED}
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
{_ALONE}"""


def _vnni(bits: int) -> str:
    """Return the instruction of AVX512-VNNI and AVX-VNNI (Intel SDM, VPDPBUSD)."""
    return (
        f"{_HEAD}  return __builtin_astype(__builtin_ia32_vpdpbusd{bits}("
        "c, __builtin_astype(a, $I), b), $I);\n}\n" + _ALONE
    )


# Lanes that are left over at the end of an axis are computed one by one.
_VNNI_ALONE: Final = (
    f"{_HEAD}  const int4 x = (int4)(as_int(a), 0, 0, 0), y = (int4)(b, 0, 0, 0);\n"
    "  const int4 sum = (int4)(c, 0, 0, 0);\n"
    "  return __builtin_astype(__builtin_ia32_vpdpbusd128(sum, x, y), int4).s0;\n}\n" + _ALONE
)
_VL: Final = "(defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__))"
FUNCTIONS: Final = {
    "m_dot4": Function(
        (),
        _PLAIN,
        (
            Host(_vnni(512), "defined(__AVX512VNNI__)", 16),
            Host(_vnni(256), _VL, 8),
            Host(_vnni(128), _VL, 4),
            Host(_VNNI_ALONE, _VL, 1),
        ),
    )
}
