import pytest

from runtime.quantities import count_text, flops_column, flops_text, size_text


@pytest.mark.parametrize(
    ("count", "noun", "plural", "text"),
    [
        (0, "kernel", "", "0 kernels"),
        (1, "kernel", "", "1 kernel"),
        (1, "launch", "", "1 launch"),
        (2, "launch", "", "2 launches"),
        (1368, "node", "", "1,368 nodes"),
        (2, "set of inputs", "sets of inputs", "2 sets of inputs"),
    ],
)
def test_counts_agree_with_their_nouns(count: int, noun: str, plural: str, text: str) -> None:
    assert count_text(count, noun, plural) == text


@pytest.mark.parametrize(
    ("flops", "text"),
    [
        (0, "0 FLOP"),
        (512, "512 FLOP"),
        (999.96, "1 kFLOP"),
        (3_456, "3.456 kFLOP"),
        (334_700_000, "334.7 MFLOP"),
        (1_646_049_715, "1.646 GFLOP"),
        (3.2e12, "3.2 TFLOP"),
    ],
)
def test_operations_have_the_unit_that_fits(flops: float, text: str) -> None:
    assert flops_text(flops) == text


def test_a_column_of_operations_has_the_unit_of_its_largest() -> None:
    assert flops_column([4, 1_500, 2_000_000]) == ("MFLOP", [4e-6, 1.5e-3, 2.0])
    assert flops_column([4, 16]) == ("FLOP", [4, 16])
    assert flops_column([]) == ("FLOP", [])


def test_bytes_have_the_unit_that_fits() -> None:
    assert [size_text(n) for n in (0, 1023, 3 * 1024 + 410, 5 << 30)] == [
        "0 B",
        "1023 B",
        "3.4 KiB",
        "5.0 GiB",
    ]
