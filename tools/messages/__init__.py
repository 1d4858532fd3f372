"""Messages of a drive: plain values, arrays over frames, and those that a drive supplies."""
