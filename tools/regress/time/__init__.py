"""The timing gate: alternates runs of two sides, and decides."""
