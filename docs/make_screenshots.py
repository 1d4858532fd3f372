"""Take the pictures of pages that README shows: `make screenshots`.

The trained model is compiled twice, in fp32 and in fp16, and sees a drive that is rendered for it.
Each page is opened in a headless Chromium, and its upper part becomes docs/screenshots/NAME.webp.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from runtime.files.user_file import whole_file
from tests.tools.views.browser import browser, find_browser
from tests.tools.waiting import wait_until

ROOT = Path(__file__).parents[1]
BUILD, PICTURES = ROOT / "build" / "screenshots", ROOT / "docs" / "screenshots"
MODELS = [str(ROOT / "tools" / "models" / f"{name}.onnx") for name in ("vision", "policy")]
WIDTH, HEIGHT = 1200, 800
MAX_BYTES = 80_000
# Best first; the first one that is small enough is taken.
QUALITIES = (85, 75, 65, 50, 35)


def modeld(*words: object, may_differ: bool = False) -> str:
    """Run a command, return its output; exit code 1, a change that was found, may be allowed."""
    command = [sys.executable, "-m", "tools.cli", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in ((0, 1) if may_differ else (0,)):
        raise SystemExit(f"screenshots: {' '.join(command[3:])} ended with {done.returncode}")
    return done.stdout


def webp(picture: NDArray[np.uint8], quality: int) -> bytes:
    """Return an (h, w, 3) picture as WebP."""
    codec = av.CodecContext.create("libwebp", "w")
    codec.height, codec.width, codec.pix_fmt = *picture.shape[:2], "yuv420p"
    codec.options = {"quality": str(quality), "preset": "text"}
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
    return b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)])


def write(name: str, picture: NDArray[np.uint8]) -> None:
    """Write the upper part of a page, small enough for a README."""
    upper = np.asarray(picture[:HEIGHT], order="C")
    data = next(one for q in QUALITIES if len(one := webp(upper, q)) <= MAX_BYTES)
    PICTURES.mkdir(exist_ok=True)
    with whole_file(PICTURES / f"{name}.webp") as file:
        file.write(data)
    print(f"docs/screenshots/{name}.webp: {len(data) / 1000:.0f} KB")


def main() -> int:
    """Make the pages and take the pictures; return 0, or 3 without a browser."""
    executable = find_browser()
    if executable is None:
        print("screenshots: no Chromium here; install one: apt install chromium", file=sys.stderr)
        return 3
    # Of a run before.
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    # As a user would name them: the pages show these names.
    here = BUILD.relative_to(ROOT)
    full, half = here / "fp32.pkl", here / "fp16.pkl"
    report, schedule, times = (BUILD / name for name in ("report.html", "schedule.html", "t.json"))
    modeld("compile", *MODELS, "-o", full)
    modeld("compile", *MODELS, "-o", half, "--precision", "fp16")
    modeld("make-drive", here / "drive", "--seconds", 9, "--seed", 3)
    (drive,) = (one.relative_to(ROOT) for one in (BUILD / "drive").iterdir())
    # Halves move the path by some 3 mm: a gate that they miss shows what a report has to say.
    gates = ("--gate", "lateral_2s_max_m < 0.002", "--no-timing", "--report", report)
    judged = ("--model", half, "--against", full, "--drives", drive)
    modeld("regress", *judged, *gates, may_differ=True)
    for model in (full, half):
        modeld("replay", drive, "--model", model, "-o", model.with_suffix(".rlog"))
    times.write_text(modeld("bench", full, "--profile", "--json"))
    modeld("inspect", "--schedule", full, "--viz", schedule, "--times", times)
    logs = [str(model.with_suffix(".rlog")) for model in (full, half)]
    command = [sys.executable, "-m", "tools.cli", "view", logs[0], "--drive", str(drive)]
    command += ["--with", logs[1], "--port", "0", "--json"]
    with (
        browser(executable) as page,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as view,
    ):
        for name, path in (("report", report), ("schedule", schedule)):
            page.open(path, WIDTH, HEIGHT)
            write(name, page.picture())
        try:
            page.open(json.loads(view.stdout.readline())["url"], WIDTH, HEIGHT)  # type: ignore[union-attr]
            note = "document.getElementById('picture-note').textContent"
            wait_until(lambda: "frame 1" in page.ask(note), "the view shows a picture")
            differ = "document.getElementById('pair-text').textContent"
            wait_until(lambda: "differ" in page.ask(differ), "both logs are read")
            write("view", page.picture())
        finally:
            view.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
