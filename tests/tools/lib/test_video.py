import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.frames import nv12_format
from tests.tools.conftest import FRAMES, SIZE, MakeVideo
from tests.tools.films import write_film
from tools.errors import VideoError
from tools.video.video import Video, write_planes
from tools.video.video_container import damaged_from


def _decode_all(path: Path) -> int:
    count = 0
    with Video(path) as video:
        for count, frame in enumerate(video.frames(), start=1):
            assert frame.time_s == pytest.approx((count - 1) / video.info.fps, abs=2e-3)
    return count


def test_frames_come_in_order_with_their_times(make_video: MakeVideo) -> None:
    with Video(make_video(fps=25)) as video:
        assert (video.info.width, video.info.height, video.info.fps) == (*SIZE, 25.0)
        frames = list(video.frames())
    assert [frame.index for frame in frames] == list(range(FRAMES))
    np.testing.assert_allclose([frame.time_s for frame in frames], np.arange(FRAMES) / 25)
    means = [frame.luma.mean() for frame in frames]
    assert means == sorted(means)
    assert means[0] < means[-1] - 10
    assert frames[0].luma.shape == (SIZE[1], SIZE[0])
    assert frames[0].chroma.shape == (SIZE[1] // 2, SIZE[0])


def test_planes_land_at_stride_and_offset_and_padding_stays() -> None:
    layout = nv12_format(6, 4)
    luma = np.arange(24, dtype=np.uint8).reshape(4, 6)
    chroma = 100 + np.arange(12, dtype=np.uint8).reshape(2, 6)
    target = np.full(layout.size, 255, np.uint8)
    write_planes(luma, chroma, target, layout)
    # By the VENUS rules 6x4 has rows of 128 bytes and 32 luma rows.
    assert (layout.stride, layout.uv_offset) == (128, 4096)
    assert target[128 * 3 : 128 * 3 + 7].tolist() == [18, 19, 20, 21, 22, 23, 255]
    assert target[4096 + 128 : 4096 + 135].tolist() == [106, 107, 108, 109, 110, 111, 255]
    assert (target == 255).sum() == layout.size - 36


def test_chroma_is_interleaved_u_first(make_video: MakeVideo) -> None:
    with Video(make_video()) as video:
        frame = next(iter(video.frames()))
    # The test picture has half the red of green and blue: V (red) below the middle, U above.
    assert frame.chroma[:, 0::2].mean() > 128 > frame.chroma[:, 1::2].mean()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("cut.mp4", "faststart"),
        ("cut.mkv", None),
        ("cut.avi", None),
        # Such a file declares no number of frames at its start.
        ("cut.mp4", "frag_keyframe+empty_moov"),
    ],
)
def test_what_precedes_a_cut_is_kept(
    make_video: MakeVideo, name: str, flags: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    # mpeg4 with many pictures, so that half of the bytes is many whole pictures.
    path = make_video(name=name, frames=60, codec="mpeg4")
    if flags:
        path = _with_index_first(path, flags)
    assert (_decode_all(path), caplog.text) == (60, "")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 6 // 10])
    kept = _decode_all(path)
    assert 1 <= kept < 60
    (record,) = caplog.records
    text = rf"cut.*expected .*, found .* after {kept} decoded frames; .* from frame {kept} on"
    assert (record.levelname, bool(re.search(text, record.message))) == ("WARNING", True)


@pytest.mark.parametrize("missing", [1, 20])
def test_a_last_picture_that_is_cut_is_not_kept(
    make_video: MakeVideo, missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Decoders conceal it, so that the number of pictures is right."""
    path = _with_index_first(make_video(name="cut.mp4", frames=5, codec="mpeg4"))
    path.write_bytes(path.read_bytes()[:-missing])
    assert _decode_all(path) == 4
    assert "expected 5 frames, found a damaged packet after 4 decoded" in caplog.text


@pytest.mark.parametrize("codec", ["ffv1", "mpeg4", "libx264"])
@pytest.mark.parametrize("at", [0, 7, 13, 23])
def test_what_precedes_damage_is_kept(tmp_path: Path, codec: str, at: int) -> None:
    """Of the last picture, too, and whatever order pictures are coded in."""
    path = write_film(tmp_path / "a.mkv", codec=(codec, "yuv420p"))
    with Video(path) as video:
        whole = [frame.luma for frame in video.frames()]
    with av.open(str(path)) as container:
        packets: list[Any] = [packet for packet in container.demux(video=0) if packet.size]
    content, found = bytearray(path.read_bytes()), packets[at]
    start = content.index(bytes(found), found.pos)
    content[start : start + found.size] = b"\xa5" * found.size
    path.write_bytes(content)
    # The first picture that is missing: what follows in the order of the file may be shown earlier.
    first = sorted(one.pts for one in packets).index(min(one.pts for one in packets[at:]))
    if first == 0:
        with pytest.raises(VideoError, match=r"expected at least one picture, found .* before"):
            Video(path)
        return
    with Video(path) as video:
        kept = [frame.luma for frame in video.frames()]
        assert f"after {first} decoded frames" in video.damage
    assert len(kept) == first
    assert all(np.array_equal(a, b) for a, b in zip(kept, whole, strict=False))


def _stream(tmp_path: Path) -> tuple[Path, NDArray[np.uint8]]:
    """Return a transport stream with several packets a picture, and the packets."""
    path = write_film(tmp_path / "a.ts", size=(320, 240), codec=("mpeg2video", "yuv420p"), fps=25)
    return path, np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 188)


@pytest.mark.parametrize("lost", [0.3, 0.6, 0.97])
def test_a_packet_that_a_transport_stream_lost_ends_it(tmp_path: Path, lost: float) -> None:
    path, packets = _stream(tmp_path)
    with Video(path) as video:
        whole = [frame.luma for frame in video.frames()]
    mine = np.flatnonzero((packets[:, 1] & 0x1F == 1) & (packets[:, 2] == 0))
    begins = mine[packets[mine, 1] & 0x40 != 0]
    # The second packet of a picture.
    at = begins[int(lost * begins.size)] + 1
    path.write_bytes(np.delete(packets, at, 0).tobytes())
    with Video(path) as video:
        kept = [frame.luma for frame in video.frames()]
        assert "found a damaged packet" in video.damage
    assert 0 < len(kept) <= int(lost * begins.size)
    assert len(kept) >= int(lost * begins.size) - 3  # of pictures that are shown out of turn
    assert all(np.array_equal(a, b) for a, b in zip(kept, whole, strict=False))


@pytest.mark.parametrize("lead", [0, 4], ids=["188 bytes", "192 bytes"])
def test_where_a_transport_stream_lacks_packets(tmp_path: Path, lead: int) -> None:
    path, packets = _stream(tmp_path)
    length = 188 + lead
    mine = np.flatnonzero((packets[:, 1] & 0x1F == 1) & (packets[:, 2] == 0))
    begins = mine[packets[mine, 1] & 0x40 != 0]
    inside = int(begins[5] + 1)

    def write(rows: NDArray[np.uint8], more: bytes = b"") -> int | None:
        rest = bytes(lead) + more if more else b""
        path.write_bytes(np.pad(rows, ((0, 0), (lead, 0))).tobytes() + rest)
        return damaged_from(path, 256)

    assert write(packets) is None
    assert write(np.concatenate([packets, packets])) is None
    assert write(np.delete(packets, inside, 0)) == begins[5] * length
    # The end is missing, inside of a packet: of pictures, of something else, of the last picture.
    assert write(packets, b"\x47") == write(packets, b"\x47\1\0") == len(packets) * length
    assert write(packets, b"\x47\1\1") is None
    assert write(packets[:-1], b"\x47\1\1") == begins[-1] * length
    # A stream that says that it counts anew.
    announced = np.delete(packets, inside, 0)
    announced[inside, 3] |= 0x20
    announced[inside, 4:6] = 1, 0x80
    assert write(announced) is None


def _with_index_first(path: Path, flags: str = "faststart") -> Path:
    target = path.with_name("cut_first.mp4")
    with (
        av.open(str(path)) as source,
        av.open(str(target), "w", options={"movflags": flags}) as sink,
    ):
        stream = sink.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                sink.mux(packet)
    return target


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a video file, found no such file"),
        (b"", "cannot be opened"),
        (b"no video" * 99, "cannot be opened"),
    ],
)
def test_file_that_is_no_video_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "x.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(VideoError, match=message):
        Video(path)


def test_odd_size_is_refused(make_video: MakeVideo) -> None:
    with pytest.raises(VideoError, match=r"expected an even width and height .* 191x128"):
        Video(make_video(size=(191, 128), codec="ffv1"))
