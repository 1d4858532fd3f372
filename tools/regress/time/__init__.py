"""The timing gate: measures the program and its reference alternately, and judges the speed."""
