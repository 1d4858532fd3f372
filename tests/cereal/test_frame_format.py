"""Formats of frames, the bytes of a ring file, and what is refused in either."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.errors import FrameError
from cereal.frame_ring import is_sound, ring_bytes, slot_bytes
from cereal.frames import (
    Frame,
    FrameFormat,
    FrameRingReader,
    FrameRingWriter,
    MemoryFrameSource,
    available_streams,
    nv12_format,
    nv12_unpadded,
    unusable_streams,
)
from tests.cereal.shared import (
    MS,
    SMALL,
    largest_file,
    open_below,
    publish,
    ring_reader,
    ring_writer,
)


@pytest.mark.parametrize(
    ("form", "expected", "payload"),
    [
        (nv12_format(1928, 1208), (1928, 1208, 2048, 2_490_368, 4_804_608), 3_727_360),
        (nv12_format(1344, 760), (1344, 760, 1408, 1_081_344, 2_428_928), 1_616_384),
        (nv12_unpadded(1928, 1208), (1928, 1208, 1928, 2_329_024, 3_493_536), 3_493_536),
        (nv12_unpadded(16, 8), (16, 8, 16, 128, 192), 16 * 8 * 3 // 2),
        # By hand: planes of 128 * (32 + 16) bytes, 4096 + 16384, a row of 512 * 512.
        (nv12_format(2, 2), (2, 2, 128, 4096, 28_672 + 262_144), 4096 + 128),
        # 8 rows are more than 16 KiB: planes of 2688 * (1536 + 768), 4096 + 21504, 3072 * 512.
        (nv12_format(2688, 1520), (2688, 1520, 2688, 4_128_768, 7_794_688), 6_171_648),
    ],
)
def test_format_of_a_camera(form: FrameFormat, expected: tuple[int, ...], payload: int) -> None:
    assert form == FrameFormat(*expected)
    assert form.payload_bytes == payload


@pytest.mark.parametrize("layout", [nv12_format, nv12_unpadded])
@pytest.mark.parametrize(("width", "height"), [(0, 8), (15, 8), (16, 7), (-2, 8), (8, 0), (8, -2)])
def test_format_needs_even_sides(
    layout: Callable[[int, int], FrameFormat], width: int, height: int
) -> None:
    with pytest.raises(ValueError, match="positive even sides"):
        layout(width, height)


@pytest.mark.parametrize("size", [(1928, 1208), (1344, 760), (2688, 1520), (960, 540), (2, 2)])
def test_formats_are_sound_up_to_the_last_byte_of_their_pixels(size: tuple[int, int]) -> None:
    for form in (nv12_format(*size), nv12_unpadded(*size)):
        need = form.uv_offset + form.stride * form.height // 2
        assert form.payload_bytes == need
        # Producers put different room behind the same planes: only what is read must be there.
        for total in (form.size, need, need + 1, form.size + 12_345):
            assert is_sound(replace(form, size=total))
        assert not is_sound(replace(form, size=need - 1))
        assert not is_sound(replace(form, stride=form.width - 1))
        assert not is_sound(replace(form, uv_offset=form.stride * form.height - 1))


@pytest.mark.parametrize(
    ("form", "one_more"),
    [
        (FrameFormat(1 << 14, 2, 1 << 14, 1 << 15, 1 << 16), "width"),
        (FrameFormat(2, 1 << 14, 2, 1 << 15, 1 << 16), "height"),
        (FrameFormat(2, 2, 1 << 16, 1 << 17, 1 << 18), "stride"),
        (FrameFormat(2, 2, 2, (1 << 32) - 2, 1 << 32), "size"),
    ],
)
def test_the_largest_format_is_sound_and_one_more_is_not(form: FrameFormat, one_more: str) -> None:
    # Room for what grows, so that nothing but the bound is in the way.
    assert is_sound(form)
    roomy = form if one_more == "size" else replace(form, stride=1 << 16, uv_offset=1 << 31)
    roomy = replace(roomy, size=1 << 32)
    assert is_sound(roomy)
    assert not is_sound(replace(roomy, **{one_more: getattr(roomy, one_more) + 1}))


def test_a_ring_lies_in_pages_as_documented(tmp_path: Path) -> None:
    """What a writer in another language relies on, word by word (docs/formats/bus.md)."""
    form = FrameFormat(64, 64, 64, 4096, 6144)
    writer = ring_writer(tmp_path, 9, form)
    assert writer.format == form
    # 24 words of header and 9 records of 8 words fit into a page; a buffer takes two.
    assert (tmp_path / "frames_cam_road").stat().st_size == 4096 + 9 * 8192
    assert ring_bytes(form, 9) == 4096 + 9 * 8192
    assert ring_bytes(form, 61) == 4096 + 61 * 8192
    assert ring_bytes(form, 62) == 8192 + 62 * 8192
    assert [slot_bytes(size) for size in (1, 4096, 4097)] == [4096, 4096, 8192]
    words = np.memmap(tmp_path / "frames_cam_road", "<u8", "r")
    assert words[:9].tolist() == [
        int.from_bytes(b"NV12RING", "little"), 1, 9, 64, 64, 64, 4096, 6144, 0,
    ]  # fmt: skip
    publish(writer, *range(101, 112))
    writer.next_buffer()[:] = 7
    assert words[8] == 11
    assert words[16] == 0
    # Frame 11 lies in slot 1, of which the number is twice its own; frame 12 is being written.
    assert words[24 + 8 : 24 + 12].tolist() == [22, 111, 5550 * MS, 5550 * MS + 10]
    assert words[24 + 16] == 23
    pixels = words.view(np.uint8)
    for frame in (4, 9, 11):
        start = 4096 + (frame - 1) % 9 * 8192
        assert (pixels[start : start + 6144] == 100 + frame).all()
        assert not pixels[start + 6144 : start + 8192].any()
    writer.close()
    assert words[16] == 1


@pytest.mark.parametrize("name", ["", "a/b", "../x", "x" * 65, "a b"])
def test_names_that_would_leave_the_directory_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="expected a name"):
        FrameRingWriter(name, "road", SMALL, directory=tmp_path)
    with pytest.raises(FrameError, match="'rear'"):
        FrameRingReader("cam", "rear", conflate=True, directory=tmp_path)
    FrameRingWriter("x" * 64, "road", SMALL, directory=tmp_path).close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "2 to 256 slots"),
        ({"count": 1}, "2 to 256 slots"),
        ({"count": 257}, "2 to 256 slots"),
        ({"format": FrameFormat(16, 8, 16, 100, 192)}, "sound format"),
        ({"directory": Path("/no/such")}, "expected to create a file next to it"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"format": SMALL, "count": 2, "directory": tmp_path}
    with pytest.raises(FrameError, match=message):
        FrameRingWriter("cam", "road", **{**given, **change})
    assert list(tmp_path.iterdir()) == []
    for count in (2, 256):
        FrameRingWriter("cam", "road", **{**given, "count": count}).close()


def test_too_little_memory_is_said_before_the_first_frame(tmp_path: Path) -> None:
    with largest_file(1 << 16), pytest.raises(FrameError, match="bytes of shared memory"):
        ring_writer(tmp_path, 6, nv12_format(640, 480))
    assert list(tmp_path.iterdir()) == []


def test_publish_needs_a_buffer_and_an_open_ring(tmp_path: Path) -> None:
    writer = ring_writer(tmp_path, 2)
    with pytest.raises(FrameError, match="next_buffer before publish of frame 5"):
        writer.publish(5, 0, 0)
    publish(writer, 1)
    with pytest.raises(FrameError, match="two publishes"):
        writer.publish(2, 0, 0)
    writer.close()
    writer.close()
    with pytest.raises(FrameError, match="closed"):
        writer.next_buffer()


# word of the header -> value that cannot be
DAMAGE = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (2, 1 << 40), (3, 0), (3, 1 << 20), (4, 1 << 20),
          (5, 15), (5, 1 << 60), (6, 127), (6, 1 << 50), (7, 191), (7, 1 << 50)]  # fmt: skip


@pytest.mark.parametrize(("word", "value"), DAMAGE)
def test_damaged_header_is_refused(word: int, value: int, tmp_path: Path) -> None:
    writer = ring_writer(tmp_path, 2)
    with (tmp_path / "frames_cam_road").open("r+b") as file:
        file.seek(8 * word)
        file.write(struct.pack("<Q", value))
    with pytest.raises(FrameError, match="frames_cam_road: expected"):
        ring_reader(tmp_path)
    writer.close()


@pytest.mark.parametrize("size", [0, 8, 191, 192, 200, 4096, 12287, 12289])
def test_file_of_another_size_is_refused(size: int, tmp_path: Path) -> None:
    writer = ring_writer(tmp_path, 2)
    content = (tmp_path / "frames_cam_road").read_bytes()
    assert len(content) == 4096 + 2 * 4096
    (tmp_path / "frames_cut_road").write_bytes((content + bytes(8))[:size])
    found = "cannot be; the file is damaged" if size >= 192 else f"got {size} bytes; remove"
    with pytest.raises(FrameError, match=f"frames_cut_road: expected .*{found}"):
        ring_reader(tmp_path, name="cut")
    writer.close()


def test_a_ring_that_is_missing_or_a_link_is_named(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match=r"frames_cam_road: expected a frame ring.*start the cam"):
        ring_reader(tmp_path)
    writer = ring_writer(tmp_path, 2)
    (tmp_path / "frames_link_road").symlink_to(tmp_path / "frames_cam_road")
    with pytest.raises(FrameError, match="frames_link_road"):
        ring_reader(tmp_path, name="link")
    writer.close()


def test_what_is_closed_or_refused_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "frames_bad_road").write_bytes(bytes(5000))
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path)
    held = open_below(tmp_path)
    # Of writer and reader one each, and what keeps their mappings.
    assert 2 <= len(held) <= 4
    with pytest.raises(FrameError, match="a running one"):
        ring_writer(tmp_path)
    with pytest.raises(FrameError, match="version"):
        ring_reader(tmp_path, name="bad")
    for name in ("cam", "bad", "none"):
        available_streams(name, directory=tmp_path)
        unusable_streams(name, directory=tmp_path)
    assert open_below(tmp_path) == held
    writer.close()
    writer = ring_writer(tmp_path)
    publish(writer, 1)
    assert reader.receive(20_000) is not None  # it has followed to the new ring
    assert len(open_below(tmp_path)) == len(held)
    reader.close()
    writer.close()
    del reader, writer
    assert open_below(tmp_path) == []


def test_memory_source_gives_back_what_was_pushed() -> None:
    source = MemoryFrameSource(SMALL)
    first, second = (Frame(np.zeros(SMALL.size, np.uint8), SMALL, n, 30, 40) for n in (3, 4))
    source.push(first)
    source.push(second)
    assert source.format == SMALL
    assert source.receive(100) is first
    assert source.is_intact()
    assert source.receive(100) is second
    assert source.receive(100) is None
    source.push(first)
    source.close()
    assert source.receive(0) is None


def test_memory_source_refuses_other_layouts() -> None:
    source = MemoryFrameSource(SMALL)
    other = nv12_format(16, 8)
    for size, form in ((191, SMALL), (other.size, other), (SMALL.size, other)):
        with pytest.raises(FrameError, match="memory frames: expected"):
            source.push(Frame(np.zeros(size, np.uint8), form, 3, 30, 40))
