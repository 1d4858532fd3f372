"""The labelled clip: its labels, kept here as numbers, and where it lies if it is checked out."""

from pathlib import Path

HERE = Path(__file__).parent
LABELS = HERE / "solid_white_right.json"
TELEMETRY = HERE / "solid_white_right.csv"
CLIP = HERE.parents[3] / "shared/data/dashcam/solidWhiteRight.mp4"
