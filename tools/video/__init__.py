"""Video files as camera frames."""
