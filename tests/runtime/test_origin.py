import pytest

from runtime.origin import short_origin, shorten


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
        ("/model/stages.2/blocks.1/mixer/Conv", 35, "/model/stages.2/blocks.1/mixer/Conv"),
        ("/model/stages.2/blocks.1/mixer/Conv", 34, "/model/../blocks.1/mixer/Conv"),
        ("/model/stages.2/blocks.1/mixer/Conv", 22, "/model/../mixer/Conv"),
        ("/model/stages.2/blocks.1/mixer/Conv", 12, "/../Conv"),
        ("model/stages.2/Conv", 15, "model/../Conv"),
        ("model/stages.2/Conv", 10, "../Conv"),
        ("onnx::Convolution_123", 12, "onnx..on_123"),
    ],
)
def test_a_long_name_loses_whole_layers_first(name: str, width: int, expected: str) -> None:
    assert shorten(name, width) == expected
