"""Hook of mkdocs: the page of services and messages, from `cereal.services` and the schemas."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

from cereal.schema import SCHEMA_PATH
from cereal.services import SERVICES, members_of, port_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

PAGE = "formats/messages.md"
SCHEMAS = ("log", "car", "driving", "hardware", "gnss", "health")
HEAD = """# Services and messages

Made from the table of services and from the schemas. [The bus](bus.md) explains ports and queues.

## Services

| service | member of Event | Hz | logged | qlog | port, std::hash | port, FNV-1a | queue, bytes |
|---|---|---|---|---|---|---|---|
"""


def services() -> str:
    """Return the rows of the table of services."""
    return "".join(
        f"| {name} | {' or '.join(members_of(name))} | {row.frequency_hz:.3g} "
        f"| {'yes' if row.logged else 'no'} | {row.decimation or '-'} "
        f"| {port_of(name, 'murmur')} | {port_of(name, 'fnv1a')} | {row.queue_bytes} |\n"
        for name, row in SERVICES.items()
    )


def messages(schema: str) -> str:
    """Return the structures of one schema, each under its name, with the schema's own comments."""
    text = SCHEMA_PATH.with_name(f"{schema}.capnp").read_text(encoding="utf-8")
    parts = [f"## {schema}.capnp\n\n```text\n{text.partition('@0x')[0].strip()}\n```\n"]
    for block in re.split(r"\n\n(?=\S)", text):
        declared = re.search(r"^(?:struct|enum) (\w+)", block, re.MULTILINE)
        if declared:
            parts.append(f"### {declared[1]}\n\n```capnp\n{block.strip()}\n```\n")
    return "\n".join(parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    content = "\n".join([HEAD + services(), *map(messages, SCHEMAS)])
    files.append(File.generated(config, PAGE, content=content))
    return files
