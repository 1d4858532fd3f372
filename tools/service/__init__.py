"""Helpers of commands about a daemon: its health, its settings as options, its models."""
