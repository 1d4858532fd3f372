"""What the compiler shows of its work."""
