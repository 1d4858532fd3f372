"""openpilot's process_replay, re-created: what drives a daemon step by step, and tests with it."""
