"""What kinds of devices are like, and which one is at hand."""
