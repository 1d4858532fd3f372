"""A convolution as our compiler writes it, and three ways to write it worse."""

from typing import Final

# Three rows of four channels, gated at the border by the coordinate; weights come from an image.
GOOD: Final = """\
__constant sampler_t m_nearest =
  CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void planted(__global float* out, __read_only image2d_t in, __read_only image2d_t weights,
             const __global float* bias)
{
  const int item = get_global_id(0);
  const int x = item % 64, y = item / 64;
  float4 sum = *(const __global float4*)(bias + item * 4);
  for (int c = 0; c < 16; c++) {
    for (int r = 0; r < 3; r++) {
      const int row = y + r - 1;
      const int inside = row >= 0 & row < 64;
      const float4 v = read_imagef(in, m_nearest, (int2)(x + c * 64, inside ? row : -1));
      sum += v.x * read_imagef(weights, m_nearest, (int2)(c * 4, r));
      sum += v.y * read_imagef(weights, m_nearest, (int2)(c * 4 + 1, r));
      sum += v.z * read_imagef(weights, m_nearest, (int2)(c * 4 + 2, r));
      sum += v.w * read_imagef(weights, m_nearest, (int2)(c * 4 + 3, r));
    }
  }
  *(__global float4*)(out + item * 4) = sum;
}
"""
# What is planted -> the text that is replaced, and by what.
WORSE: Final = {
    "a gated read": (
        "read_imagef(in, m_nearest, (int2)(x + c * 64, inside ? row : -1))",
        "inside ? read_imagef(in, m_nearest, (int2)(x + c * 64, row)) : (float4)(0)",
    ),
    "a lost vector load": (
        "*(const __global float4*)(bias + item * 4)",
        "vload4(0, bias + item * 4)",
    ),
    "registers of another class": (
        "  for (int c = 0; c < 16; c++) {\n",
        """\
  float4 kept[12];
  for (int k = 0; k < 12; k++) kept[k] = read_imagef(weights, m_nearest, (int2)(k, y));
  for (int c = 0; c < 16; c++) {
    for (int k = 0; k < 12; k++) kept[k] *= kept[(k + 1) % 12] + sum;
""",
    ),
}


def planted(fault: str) -> str:
    """Return the convolution with a fault; "" for none."""
    if not fault:
        return GOOD
    old, new = WORSE[fault]
    assert old in GOOD
    text = GOOD.replace(old, new)
    if "kept" in new:
        # They are needed to the end.
        ends = "".join(f"  sum += kept[{k}];\n" for k in range(12))
        text = text.replace("  *(__global", f"{ends}  *(__global")
    return text
