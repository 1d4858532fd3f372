"""The prelude's functions over the whole range of float32, for scalars and vectors, on the device.

One program holds all functions at all widths: PoCL compiles four kernels, not fifty. Errors are
judged at width 16; the other widths give the same bits.
"""

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.opencl.binding import cl
from runtime.opencl.device import choose_device
from scheduler.device.targets import spec_of_device
from scheduler.ir.interp import dot4
from scheduler.render.prelude.prelude import BOUNDS, GELU_BOUND, prelude

pytestmark = pytest.mark.opencl

Array = NDArray[Any]
Values = tuple[Array, dict[int, dict[str, Array]]]
WIDTHS = (1, 2, 4, 8, 16)
UNARY = [name for name in BOUNDS if name != "pow"]
NAMES = [*UNARY, "fabs", "round_half", "gelu"]
SPECIAL = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, math.inf, math.nan, 1e-45, 1e-38, 2.0**-126, 88.72284]
SPECIAL += [3.4028235e38, 2.0**24, 2.0**24 - 1, 2.0**31, 1e30, 88.0, 1e-20, 1 + 2.0**-23, 103.97]
SPECIAL += [1 - 2.0**-24, 48000.0, 48000.004, 65504.0, 65520.0, 0.49999997, 8388607.5, 1e22]


SIGNED = np.array([*SPECIAL, *(-v for v in SPECIAL)], np.float32)


def _unary_inputs() -> Array:
    """Floats from all of the range, special values, and more where functions change."""
    bits = np.arange(0, 2**32, 40_009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.linspace(-104, 89.5, 40_001, dtype=np.float32)
    near = np.linspace(-5, 5, 40_001, dtype=np.float32)
    multiples = (np.arange(1, 20_000) * (math.pi / 2)).astype(np.float32)
    return np.concatenate([SIGNED, bits, edges, near, multiples])


def _power_inputs(size: int) -> tuple[Array, Array]:
    """All pairs of special values, then powers that neither overflow nor vanish."""
    rng = np.random.default_rng(0)
    a, b = (m.reshape(-1) for m in np.meshgrid(SIGNED, SIGNED))
    n = size - a.size
    wide, middle = 2.0 ** rng.uniform(-149, 128, n // 3), rng.uniform(0.6, 1.6, n // 3)
    close = 1.0 + rng.integers(-200, 200, n - 2 * (n // 3)) * 2.0**-24
    base = np.concatenate([wide, middle, close]).astype(np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        exponent = rng.uniform(-151, 129, n) / np.log2(base.astype(np.float64))
        return np.concatenate([a, base]), np.concatenate([b, exponent]).astype(np.float32)


def _kernel(width: int) -> str:
    suffix = str(width) if width > 1 else ""
    calls = [f"m_{name}(v)" for name in NAMES] + ["m_pow(p, q)"]
    read, write = "in[j + {at} * n]", "out[j + {at} * n] = {call};"
    if width > 1:
        read = f"M_LOAD(float, {width}, in + j + {{at}} * n)"
        write = f"M_STORE(float, {width}, {{call}}, out + j + {{at}} * n);"
    reads = [(name, read.format(at=i)) for i, name in enumerate("vpq")]
    writes = [write.format(at=i, call=call) for i, call in enumerate(calls)]
    return (
        f"__kernel void at{width}(const __global float* in, __global float* out, int n) {{\n"
        f"for (int j = 0; j < n; j += {width}) {{\n"
        + "".join(f"const float{suffix} {name} = {code};\n" for name, code in reads)
        + "\n".join(writes)
        + "}}\n"
    )


def launch(
    text: str,
    widths: Sequence[int],
    given: Array,
    *results: Array,
    first: str = "",
    host_clang: bool = True,
) -> Iterator[int]:
    """Run kernel `at<width>` of a text for each width, and fill results before the next one."""
    device = choose_device(None)
    queue, flags = cl.CommandQueue(device.context), cl.mem_flags
    with warnings.catch_warnings():
        # Compilers remark on vectors wider than the processor's, which are passed in memory.
        warnings.simplefilter("ignore", cl.CompilerWarning)
        whole = first + prelude(text, list(widths), host_clang=host_clang) + text
        program = cl.Program(device.context, whole).build()
    source = cl.Buffer(device.context, flags.COPY_HOST_PTR, hostbuf=given)
    targets = [cl.Buffer(device.context, flags.READ_WRITE, r.nbytes) for r in results]
    for width in widths:
        kernel = getattr(program, f"at{width}")
        kernel(queue, (1,), (1,), source, *targets, np.int32(given.shape[-1]))
        for result, target in zip(results, targets, strict=True):
            cl.enqueue_copy(queue, result, target)
        yield width


def _compute(
    inputs: Array, widths: tuple[int, ...], first: str = "", *, host_clang: bool = True
) -> dict[int, dict[str, Array]]:
    """Return by width what each function gives; `first` comes before the program's text."""
    text = "".join(_kernel(width) for width in widths)
    result = np.empty((len(NAMES) + 1, inputs.shape[1]), np.float32)
    return {
        width: dict(zip([*NAMES, "pow"], result.copy(), strict=True))
        for width in launch(text, widths, inputs, result, first=first, host_clang=host_clang)
    }


@pytest.fixture(scope="module")
def values() -> Values:
    """Inputs (3, n), and by width what each function gives for them."""
    x = _unary_inputs()
    x = x[: x.size // 16 * 16]
    inputs = np.stack([x, *_power_inputs(x.size)])
    return inputs, _compute(inputs, WIDTHS)


def _exact(name: str, *given: Array) -> Array:
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64) for x in given]
        if name == "erf":
            return np.asarray(np.frompyfunc(math.erf, 1, 1)(*wide), np.float64)
        return np.asarray(getattr(np, "power" if name == "pow" else name)(*wide))


def _units(got: Array, exact: Array) -> Array:
    """Return errors in units of the last place; infinite where kinds or signs of zero differ."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = exact.astype(np.float32)
        units = np.abs(got.astype(np.float64) - exact)
        units /= np.spacing(np.abs(nearest)).astype(np.float64)
        # Beyond the largest float the right result is infinity, and one step below it is within 1.
        large = np.isinf(nearest)
        units[large] = np.inf
        units[large & (got == np.nextafter(nearest, np.float32(0)))] = 1
        units[large & (got == nearest)] = 0
        units[np.isnan(got) != np.isnan(exact)] = np.inf
        units[np.isnan(got) & np.isnan(exact)] = 0
        units[(exact == 0) & (np.signbit(got) != np.signbit(exact))] = np.inf
    return units


@pytest.mark.parametrize("name", list(BOUNDS))
def test_error_is_within_the_stated_bound(values: Values, name: str) -> None:
    inputs, found = values
    given = inputs[1:] if name == "pow" else inputs[:1]
    units = _units(found[16][name], _exact(name, *given))
    worst = int(np.argmax(units))
    message = f"{name}{tuple(given[:, worst])}: {found[16][name][worst]!r}"
    assert units[worst] <= BOUNDS[name], message


def _check_same_bits(ours: dict[str, Array], others: dict[str, Array]) -> None:
    for name in ours.keys() & others.keys():
        one, other = ours[name], others[name]
        assert np.array_equal(np.isnan(one), np.isnan(other)), name
        known = ~np.isnan(one)
        same = one[known].view(np.uint32) == other[known].view(np.uint32)
        assert same.all(), f"{name}: {np.flatnonzero(~same)[:5]}"


def test_all_widths_give_the_same_bits(values: Values) -> None:
    _, found = values
    for width in WIDTHS[1:]:
        _check_same_bits(found[1], found[width])


@pytest.mark.parametrize("plain", [False, True], ids=["no instructions", "plain text"])
def test_other_texts_give_the_same_bits(values: Values, *, plain: bool) -> None:
    """Without special instructions, and what a driver that is not PoCL compiles: of one width."""
    inputs, found = values
    names = () if plain else ("AVX512F", "F16C", "x86_64", "aarch64")
    hidden = "".join(f"#undef __{name}__\n" for name in names)
    width = spec_of_device(choose_device(None)).lanes  # what the library gets in one piece
    other = _compute(inputs, (width,), hidden, host_clang=not plain)[width]
    if choose_device(None).info.simd in ("sse", "avx"):
        # What is rounded once only by the host's form, where there is no instruction.
        other = {n: v for n, v in other.items() if n not in ("exp", "sin", "cos", "pow")}
    _check_same_bits(found[width], other)


def test_plain_text_names_nothing_of_clang_but_its_overloads() -> None:
    text = "".join(f"m_{name}(" for name in (*BOUNDS, "gelu", "round_half"))
    plain = prelude(text + "M_LOAD_HALF_16(", [2, 4, 8, 16], host_clang=False)
    assert "clang" not in plain
    assert not re.findall(r"__builtin\w*|__asm__|ext_vector_type|always_inline|__fp16", plain)
    assert set(re.findall(r"__attribute__\(\((\w+)", plain)) == {"overloadable"}


def test_bounded_functions_do_not_leave_their_range(values: Values) -> None:
    _, found = values
    for name in ("tanh", "erf", "sin", "cos"):
        assert np.nanmax(np.abs(found[16][name])) <= 1, name


def test_gelu_is_near_the_product_it_stands_for(values: Values) -> None:
    (x, _, _), found = values
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        exact = wide * 0.5 * (1 + _exact("erf", wide / math.sqrt(2)))
        got = found[16]["gelu"]
        assert np.array_equal(np.isnan(got), np.isnan(exact))
        usual = np.isfinite(wide) & (np.abs(wide) > 1e-36)  # below, float32 itself is coarser
        assert (np.abs(got - exact)[usual] <= GELU_BOUND * np.abs(wide)[usual]).all()
        assert (np.abs(got)[wide < -5.7] == 0).sum() == np.isfinite(wide[wide < -5.7]).sum()
        assert (got[wide > 5.7] == x[wide > 5.7]).all()


def test_halves_round_to_the_nearest_even(values: Values) -> None:
    (x, _, _), found = values
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(np.float16).astype(np.float32)
    assert np.array_equal(found[16]["round_half"], wanted, equal_nan=True)
    assert np.array_equal(found[16]["fabs"], np.abs(x), equal_nan=True)


def test_every_half_is_loaded_and_stored_as_it_is() -> None:
    """At all widths, denormals, infinities and the payload of NaNs included."""
    bits, widths = np.arange(65536, dtype=np.uint16), (1, 2, 8, 16)
    text = "".join(
        f"__kernel void at{w}(const __global half* in, __global half* out, __global float* wide,\n"
        f"int n) {{ for (int j = 0; j < n; j += {w}) {{\n"
        f"const float{'' if w == 1 else w} v = M_LOAD_HALF_{w}(in + j);\n"
        f"M_STORE_HALF_{w}(v, out + j);\n"
        + ("wide[j] = v;" if w == 1 else f"M_STORE(float, {w}, v, wide + j);")
        + "}}\n"
        for w in widths
    )
    back, wide = np.empty(65536, np.uint16), np.empty(65536, np.float32)
    halves = bits.view(np.float16)
    number = ~np.isnan(halves)
    for _ in launch(text, widths, bits, back, wide):
        assert np.array_equal(wide, halves.astype(np.float32), equal_nan=True)
        assert np.array_equal(back[number], bits[number])
        assert np.isnan(back.view(np.float16)[~number]).all()


# The function of cl_khr_integer_dot_product as its specification has it.
PACKED_DOT = """
#define __opencl_c_integer_dot_product_input_4x8bit_packed 1
int dot_4x8packed_us_int(uint a, uint b) {
  const int4 products = convert_int4(as_uchar4(a)) * convert_int4(as_char4(b));
  return products.s0 + products.s1 + products.s2 + products.s3;
}
"""


def _dots(width: int) -> str:
    n = width if width > 1 else ""
    load = "M_LOAD(uint, {0}, {1})" if width > 1 else "*({1})"
    a, b = (load.format(width, f"in + {start}") for start in ("i", "size + i"))
    result = f"m_dot4({a}, as_int{n}({b}), (int{n})(i))"
    store = f"M_STORE(int, {width}, {result}, out + i)" if width > 1 else f"out[i] = {result}"
    return (
        f"__kernel void at{width}(const __global uint* in, __global int* out, int size) {{\n"
        f"  for (int i = 0; i < size; i += {width}) {store};\n}}\n"
    )


@pytest.mark.parametrize(("first", "host"), [("", True), ("", False), (PACKED_DOT, False)])
def test_dot_products_of_bytes_are_exact_in_every_form(first: str, *, host: bool) -> None:
    """An instruction of the host, plain arithmetic, and the function of an extension."""
    widths = (1, 4, 8, 16)
    given = np.random.default_rng(1).integers(0, 2**32, (2, 64), dtype=np.uint32)
    given[:, :3] = [[0, 0xFFFFFFFF, 0xFFFFFFFF], [0x80808080, 0x80808080, 0x7F7F7F7F]]
    found = np.zeros(64, np.int32)
    text = "".join(map(_dots, widths))
    for width in launch(text, widths, given, found, first=first, host_clang=host):
        begin = np.arange(64) // width * width
        np.testing.assert_array_equal(found, dot4(given[0], given[1].view(np.int32)) + begin)
