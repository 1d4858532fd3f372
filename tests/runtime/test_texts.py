"""Texts for people: where a kernel comes from, counts, operations and bytes."""

import pytest

from runtime.texts import count_text, flops_column, flops_text, short_origin, shorten, size_text

LONG = "/model/stages.2/blocks.1/mixer/Conv"


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        ((), 20, "-"),
        (("/a/Conv",), 20, "/a/Conv"),
        (("/a/b/Conv", "/a/b/Mul"), 30, "/a/b/{Conv,Mul}"),
        (("/a/Erf", "/b/Conv", "/b/Mul"), 30, "/b/{Conv,Mul} +1"),
        (("plain", "names"), 20, "names +1"),
        (("/a/A", "/a/B", "/a/Cccccccc", "/a/D", "/a/E"), 14, "/a/{A,B,..,E}"),
    ],
)
def test_short_origin(names: tuple[str, ...], width: int, expected: str) -> None:
    assert short_origin(names, width) == expected
    assert len(expected) <= width


def test_short_origin_is_never_longer_than_asked() -> None:
    names = [f"/a/long/path/of/a/layer.{i}/Operator_{i}" for i in range(40)]
    for count in range(1, 40):
        for width in (20, 44):
            assert len(short_origin(names[:count], width)) <= width


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        (LONG, 35, LONG), (LONG, 34, "/model/../blocks.1/mixer/Conv"),
        (LONG, 22, "/model/../mixer/Conv"), (LONG, 12, "/../Conv"),
        ("model/stages.2/Conv", 15, "model/../Conv"), ("model/stages.2/Conv", 10, "../Conv"),
        ("onnx::Convolution_123", 12, "onnx..on_123"),
    ],
)  # fmt: skip
def test_a_long_name_loses_whole_layers_first(name: str, width: int, expected: str) -> None:
    assert shorten(name, width) == expected


@pytest.mark.parametrize(
    ("count", "noun", "plural", "text"),
    [
        (0, "kernel", "", "0 kernels"), (1, "kernel", "", "1 kernel"),
        (1, "launch", "", "1 launch"), (2, "launch", "", "2 launches"),
        (1368, "node", "", "1,368 nodes"),
        (2, "set of inputs", "sets of inputs", "2 sets of inputs"),
    ],
)  # fmt: skip
def test_counts_agree_with_their_nouns(count: int, noun: str, plural: str, text: str) -> None:
    assert count_text(count, noun, plural) == text


def test_operations_and_bytes_have_the_unit_that_fits() -> None:
    flops = {
        0: "0 FLOP", 512: "512 FLOP", 999.96: "1 kFLOP", 3_456: "3.456 kFLOP",
        334_700_000: "334.7 MFLOP", 1_646_049_715: "1.646 GFLOP", 3.2e12: "3.2 TFLOP",
    }  # fmt: skip
    assert {number: flops_text(number) for number in flops} == flops
    # A column has the unit of its largest.
    assert flops_column([4, 1_500, 2_000_000]) == ("MFLOP", [4e-6, 1.5e-3, 2.0])
    assert flops_column([4, 16]) == ("FLOP", [4, 16])
    assert flops_column([]) == ("FLOP", [])
    sizes = {
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        1 << 20: "1.0 MiB",
        1 << 30: "1.0 GiB",
        3 * 1024 + 410: "3.4 KiB",
        5 << 30: "5.0 GiB",
    }
    assert {size: size_text(size) for size in sizes} == sizes
