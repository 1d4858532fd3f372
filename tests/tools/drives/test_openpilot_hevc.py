import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cereal.frames import Frame, nv12_format
from tests.tools.drives.segments import GOP, SIZE, encode, shown
from tools.drives import hevc_frames
from tools.drives.hevc_frames import HevcIndex, HevcReader, scan_hevc
from tools.errors import DriveError

COUNT = 17
LAYOUT = nv12_format(*SIZE)

MakeVideo = Callable[..., Path]
ReaderOf = Callable[[HevcIndex], HevcReader]


@pytest.fixture
def make_hevc(tmp_path: Path) -> MakeVideo:
    def make(*, repeats_headers: bool = False, hashed: bool = False) -> Path:
        path = tmp_path / "fcamera.hevc"
        packets = encode("road", tuple(range(COUNT)), SIZE, hashed)
        path.write_bytes(packets.file(repeats_headers=repeats_headers))
        return path

    return make


@pytest.fixture
def reader_of() -> Iterator[ReaderOf]:
    readers: list[HevcReader] = []

    def make(index: HevcIndex) -> HevcReader:
        readers.append(HevcReader(index))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def _read(reader: HevcReader, picture: int) -> tuple[str, int]:
    data = np.zeros(LAYOUT.size, np.uint8)
    reader.read(picture, data, LAYOUT)
    return shown(Frame(data, LAYOUT, 0, 0, 0))


@pytest.mark.parametrize("repeats_headers", [False, True])
@pytest.mark.parametrize("chunk", [7, 64, 1 << 22])
def test_scan_finds_pictures_whatever_is_read_at_once(
    make_hevc: MakeVideo, monkeypatch: pytest.MonkeyPatch, repeats_headers: bool, chunk: int
) -> None:
    monkeypatch.setattr(hevc_frames, "_CHUNK", chunk)
    path = make_hevc(repeats_headers=repeats_headers)
    index = scan_hevc(path)
    packets = encode("road", tuple(range(COUNT)), SIZE, hashed=False)
    header = len(packets.header)
    sizes = [len(body) for body, _ in packets.bodies]
    keys = [number % GOP == 0 for number in range(COUNT)]
    expected = [
        size + header * (is_key if repeats_headers else number == 0)
        for number, (size, is_key) in enumerate(zip(sizes, keys, strict=True))
    ]
    assert len(index) == COUNT
    assert index.is_key.tolist() == keys
    assert [*index.sizes_bytes] == expected
    assert index.sha256 == hashlib.sha256(path.read_bytes()).digest()
    assert index.key_before(GOP - 1) == 0
    assert index.key_before(2 * GOP) == 2 * GOP


@pytest.mark.parametrize("repeats_headers", [False, True])
def test_every_picture_is_reached_from_every_other(
    make_hevc: MakeVideo, repeats_headers: bool, reader_of: ReaderOf
) -> None:
    reader = reader_of(scan_hevc(make_hevc(repeats_headers=repeats_headers)))
    order = [*range(COUNT), *range(COUNT - 1, -1, -1), 3, 3, 4, 12, 0, 16, 16, 5]
    assert [_read(reader, number) for number in order] == [("road", number) for number in order]
    reader.close()


def test_seeking_gives_the_same_bytes_as_reading_through(
    make_hevc: MakeVideo, reader_of: ReaderOf
) -> None:
    index = scan_hevc(make_hevc())
    through, apart = np.zeros((2, LAYOUT.size), np.uint8)
    reader = reader_of(index)
    for number in range(COUNT):
        reader.read(number, through, LAYOUT)
        reader_of(index).read(number, apart, LAYOUT)
        assert (through == apart).all()


def test_planes_lie_where_the_layout_says_and_padding_is_left(
    make_hevc: MakeVideo, reader_of: ReaderOf
) -> None:
    data = np.full(LAYOUT.size, 255, np.uint8)
    reader_of(scan_hevc(make_hevc())).read(0, data, LAYOUT)
    # 64x48: rows of 128 bytes; 64 luma rows before the chroma.
    assert (LAYOUT.stride, LAYOUT.uv_offset) == (128, 8192)
    luma = data[: 128 * 48].reshape(48, 128)
    assert (luma[:, 64:] == 255).all()
    assert luma[:, :64].max() < 240
    assert (data[128 * 48 : 8192] == 255).all()
    chroma = data[8192 : 8192 + 128 * 24].reshape(24, 128)
    assert (chroma[:, 64:] == 255).all()
    # The test picture's blue rises from 60 to 190 over the columns, red falls; blue comes first.
    blue, red = chroma[:, 0:64:2].mean(0), chroma[:, 1:64:2].mean(0)
    np.testing.assert_allclose(blue, np.linspace(60, 190, 32), atol=4)
    np.testing.assert_allclose(red, np.linspace(190, 60, 32), atol=4)


def _decoded(index: HevcIndex, count: int = COUNT) -> tuple[list[bytes], str]:
    """Read in order; return the pictures, and the error that ended them."""
    reader = HevcReader(index)
    pictures: list[bytes] = []
    data = np.zeros(LAYOUT.size, np.uint8)
    try:
        for number in range(count):
            reader.read(number, data, LAYOUT)
            pictures.append(data.tobytes())
    except DriveError as error:
        return pictures, str(error)
    finally:
        reader.close()
    return pictures, ""


@pytest.mark.parametrize(
    ("end", "more", "onward", "error"),
    [
        (9, 0, COUNT, "picture 9 of 9: expected a picture, found the end of the file after 9"),
        # Decoders fill up what is missing; who opens the file knows from its log that it is cut.
        (
            9,
            20,
            COUNT,
            "picture 9 of 10: expected a complete picture, found the end of the file",
        ),
        (7, 0, 8, "damage at picture 7"),
    ],
    ids=["ends early", "last picture is cut", "picture is lost"],
)
def test_what_precedes_damage_is_right_and_nothing_else_is_shown(
    make_hevc: MakeVideo, end: int, more: int, onward: int, error: str
) -> None:
    path = make_hevc()
    whole = scan_hevc(path)
    right, _ = _decoded(whole)
    data = path.read_bytes()
    at = [*whole.starts.tolist(), len(data)]
    path.write_bytes(data[: at[end] + more] + data[at[onward] :])
    index = scan_hevc(path)
    pictures, said = _decoded(replace(index, trusted=end) if more else index, COUNT - 1)
    assert pictures == right[:end]
    assert "fcamera.hevc" in said
    assert error in said


def test_damage_is_found_by_checksums(make_hevc: MakeVideo) -> None:
    """Every single bit, of a picture in the middle: not one damaged picture is shown."""
    path = make_hevc(hashed=True)
    whole = scan_hevc(path)
    data = path.read_bytes()
    begin, end = int(whole.starts[7]), int(whole.starts[8])
    right, _ = _decoded(whole)
    assert len(right) == COUNT
    found = 0
    for position in range(begin + 6, end):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        pictures, _ = _decoded(scan_hevc(path))
        assert len(pictures) >= 7
        assert pictures == right[: len(pictures)]
        found += len(pictures) < COUNT
    # Some bits mean nothing, or make the checksum something that is passed over.
    assert found >= 0.8 * (end - begin - 6)


def test_picture_after_damage_is_reached_from_the_next_key_frame(
    make_hevc: MakeVideo, reader_of: ReaderOf
) -> None:
    path = make_hevc(hashed=True)
    whole = scan_hevc(path)
    data = bytearray(path.read_bytes())
    data[int(whole.starts[7]) + 30] ^= 255
    path.write_bytes(data)
    reader = reader_of(scan_hevc(path))
    with pytest.raises(DriveError, match="damage at picture 7"):
        _read(reader, 9)
    assert _read(reader, 2 * GOP) == ("road", 2 * GOP)
    assert _read(reader, 3) == ("road", 3)


def test_video_without_key_frame_is_refused(make_hevc: MakeVideo, reader_of: ReaderOf) -> None:
    path = make_hevc()
    whole = scan_hevc(path)
    path.write_bytes(path.read_bytes()[int(whole.starts[1]) :])
    index = scan_hevc(path)
    assert len(index) == COUNT - 1
    assert index.is_key.tolist().index(True) == GOP - 1
    with pytest.raises(DriveError, match="expected a key frame at or before it, found none"):
        _read(reader_of(index), 0)


@pytest.mark.parametrize("content", [b"", b"\0" * 1000, b"\0\0\1", b"\0\0\1\x40", b"no video"])
def test_file_without_pictures_has_none(
    tmp_path: Path, content: bytes, reader_of: ReaderOf
) -> None:
    path = tmp_path / "fcamera.hevc"
    path.write_bytes(content)
    assert len(scan_hevc(path)) == 0
    with pytest.raises(DriveError, match="picture 0 of 0: expected a picture, found the end"):
        _read(reader_of(scan_hevc(path)), 0)


@pytest.mark.parametrize("unit", [b"\0\0\1\x26\x01\x80", b"\0\0\1\x40\x01\x80\0\0\1\x4e\x01\x80"])
def test_file_of_start_codes_is_refused_before_it_fills_the_memory(
    tmp_path: Path, unit: bytes
) -> None:
    path = tmp_path / "fcamera.hevc"
    path.write_bytes(unit * 50_000)
    with pytest.raises(DriveError, match="expected at most 20000 pictures, found more"):
        scan_hevc(path)


def test_other_size_is_refused(make_hevc: MakeVideo, reader_of: ReaderOf) -> None:
    reader = reader_of(scan_hevc(make_hevc()))
    assert reader.format_of(0) == LAYOUT
    other = nv12_format(128, 96)
    with pytest.raises(DriveError, match=r"expected 128x96 pixels, found 64x48"):
        reader.read(0, np.zeros(other.size, np.uint8), other)


def test_file_that_shrinks_while_it_is_read_is_refused(
    make_hevc: MakeVideo, reader_of: ReaderOf
) -> None:
    path = make_hevc()
    reader = reader_of(scan_hevc(path))
    _read(reader, 0)
    with path.open("rb+") as file:
        file.truncate(500)
    with pytest.raises(DriveError, match="another process is writing to the file"):
        _read(reader, COUNT - 1)


def test_several_readers_decode_at_the_same_time(make_hevc: MakeVideo) -> None:
    index = scan_hevc(make_hevc())
    right = _decoded(index)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(_decoded, [index] * 4)) == [right] * 4
    assert len(right[0]) == COUNT
