"""Which tests a change can make fail."""
