"""The live view: one local page about a daemon that runs, or about a log."""
