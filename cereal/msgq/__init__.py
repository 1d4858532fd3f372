"""The ring of msgq: messages of one service in shared memory, as openpilot's processes have it.

One writer, at most 15 readers; the writer never waits for a reader. Layout: `layout`;
rules: docs/formats/bus.md#rings-of-messages.
"""
