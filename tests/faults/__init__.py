"""Faults that are injected into the real daemon process, and what it must do: docs/faults.md."""
