"""Serves ``modeld view``: one local page about a running daemon or about a log."""
