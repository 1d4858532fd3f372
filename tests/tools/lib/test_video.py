from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from cereal.frames import nv12_format
from tests.tools.conftest import FRAMES, SIZE, MakeVideo
from tools.errors import VideoError
from tools.lib.video import Video, write_planes


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
    ("name", "flags", "found"),
    [
        ("cut.mp4", "faststart", ".*"),
        ("cut.mkv", None, ".*"),
        ("cut.avi", None, ".*"),
        # Such a file declares no number of frames at its start.
        ("cut.mp4", "frag_keyframe+empty_moov", "a damaged packet"),
    ],
)
def test_video_that_ends_early_says_how_far_it_came(
    make_video: MakeVideo, name: str, flags: str | None, found: str
) -> None:
    # mpeg4 with many pictures, so that half of the bytes is many whole pictures.
    path = make_video(name=name, frames=60, codec="mpeg4")
    if flags:
        path = _with_index_first(path, flags)
    assert _decode_all(path) == 60
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 6 // 10])
    with pytest.raises(
        VideoError, match=rf"cut.*expected .*, found {found} after [1-9]\d* decoded"
    ):
        _decode_all(path)


@pytest.mark.parametrize("missing", [1, 20])
def test_video_whose_last_picture_is_cut_is_refused(make_video: MakeVideo, missing: int) -> None:
    """Decoders conceal it, so that the number of pictures is right."""
    path = _with_index_first(make_video(name="cut.mp4", frames=5, codec="mpeg4"))
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(
        VideoError, match=r"expected 5 frames, found a damaged packet after 4 decoded"
    ):
        _decode_all(path)


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
        (None, "expected a video file, found nothing"),
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
