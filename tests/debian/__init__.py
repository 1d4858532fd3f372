"""Tests in a Debian of another processor or with another Python: `python -m tests.debian`."""
