"""msgq rings: the shared memory through which openpilot's processes exchange messages.

Each service has one ring with one writer and at most 15 readers. The writer never waits for a
reader. See `cereal.msgq.ring` for the layout and docs/formats/bus.md#rings-of-messages for the
rules.
"""
