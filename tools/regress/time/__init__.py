"""The timing gate: measures two sides by turns, and decides."""
