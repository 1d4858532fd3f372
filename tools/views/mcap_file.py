"""An MCAP file that is written as it goes: JSON messages, schemas, compressed chunks, an index.

The only module that imports `mcap` (extra ``replay``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.files.whole_file import whole_file
from tools.lib.json_output import json_text
from tools.views.message_schema import message_text

# Decompressed at a time by a viewer that seeks.
CHUNK_BYTES = 1 << 20


class McapFile:
    """Channels are made at their first message."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def has(self, topic: str) -> bool:
        """Return whether a channel exists."""
        return topic in self._channels

    def open_channel(
        self, topic: str, schema_name: str, schema: Mapping[str, Any], facts: Mapping[str, str]
    ) -> None:
        """Make a channel of JSON messages.

        Args:
            topic: name of the channel.
            schema_name: by which viewers know what the messages are.
            schema: JSON schema of the messages.
            facts: what is said about the channel.
        """
        if schema_name not in self._schemas:
            text = json_text({"title": schema_name, **schema}).encode()
            self._schemas[schema_name] = self._writer.register_schema(
                schema_name, "jsonschema", text
            )
        self._channels[topic] = self._writer.register_channel(
            topic, "json", self._schemas[schema_name], dict(facts)
        )
        self.counts[topic] = 0

    def write(
        self,
        topic: str,
        log_time_ns: int,
        message: Mapping[str, Any],
        publish_time_ns: int | None = None,
    ) -> None:
        """Write a message to an open channel.

        Args:
            topic: name of the channel.
            log_time_ns: where viewers show it.
            message: its content.
            publish_time_ns: when it was sent; None: then.
        """
        self._writer.add_message(
            channel_id=self._channels[topic],
            log_time=log_time_ns,
            data=message_text(message).encode(),
            publish_time=log_time_ns if publish_time_ns is None else publish_time_ns,
            sequence=self.counts[topic],
        )
        self.counts[topic] += 1

    def add_facts(self, name: str, facts: Mapping[str, str]) -> None:
        """Write a metadata record."""
        self._writer.add_metadata(name, dict(facts))


@contextmanager
def mcap_file(path: Path) -> Iterator[McapFile]:
    """Open a new MCAP file, which appears in full or not at all.

    Raises:
        ModuleNotFoundError: the extra ``replay`` is not installed.
        OSError: the file cannot be written; nothing is left.
    """
    from mcap.writer import CompressionType, Writer

    with whole_file(path) as file:
        # Its methods have no types of their own.
        writer: Any = Writer(file, chunk_size=CHUNK_BYTES, compression=CompressionType.ZSTD)
        writer.start(profile="", library="modeld")
        yield McapFile(writer)
        writer.finish()
