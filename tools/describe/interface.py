"""Describes the interface of a driving or driver monitoring model, as `modeld inspect` prints it.

Each property has its value, and whether it was derived from the model or declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from runtime.format.interfaces import (
    HistoryRule,
    Interface,
    ModelPart,
    MonitoringInterface,
    parse_interface,
    parse_monitoring_interface,
)
from tools.lib.table import Section

Recognised = Interface | MonitoringInterface
Row = tuple[str, str, str]
DERIVED = "names, shapes and slices of the model"


def stored_interface(kind: str, metadata: Mapping[str, Any]) -> Recognised | None:
    """Return the interface that an artifact holds, or None for a plain model.

    Raises:
        ArtifactError: it is not sound.
    """
    if kind == "driving":
        return parse_interface(metadata.get("interface"))
    if kind == "monitoring":
        return parse_monitoring_interface(metadata.get("interface"))
    return None


def interface_facts(kind: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return name, reason and properties of an artifact's interface; None for a plain model."""
    found = stored_interface(kind, metadata)
    if found is None:
        return None
    return {"name": found.name, "reason": found.reason, "properties": plain_rows(found)}


def plain_rows(interface: Recognised) -> list[dict[str, str]]:
    """Return the properties for JSON."""
    return [
        {"property": name, "value": value, "source": source}
        for name, value, source in _rows(interface)
    ]


def interface_section(interface: Recognised) -> Section:
    """Return the properties as a table; its title says why this interface was taken."""
    rows: list[tuple[object, ...]] = list(_rows(interface))
    title = f"interface: {interface.name}, {interface.reason}"
    return Section(title, ("property", "value", "source"), rows)


def _rows(interface: Recognised) -> Iterator[Row]:
    declared = f"declared for {interface.name}"
    if isinstance(interface, MonitoringInterface):
        yield from _part(interface.model)
        yield "image_mode", interface.image_mode, declared
        yield "stds", interface.stds, declared
        return
    # What a file beside the model replaces stands behind the reason: "; rules of FILE: a, b".
    file, _, replaced = interface.reason.partition("; rules of ")[2].partition(": ")
    for part in interface.models:
        yield from _part(part)
    for name, value in _derived(interface):
        yield name, value, DERIVED
    for name, value in _declared(interface):
        yield name, value, f"declared by {file}" if name in replaced.split(", ") else declared


def _derived(interface: Interface) -> Iterator[tuple[str, str]]:
    yield "image.gap", _gap(interface)
    for name in ("desire", "features", "curvature"):
        yield name, _history(getattr(interface, name))
    yield "states", ", ".join(interface.states) or "none"
    yield "host_inputs", ", ".join(interface.host_inputs) or "none"
    yield "meta", f"{interface.meta} values"


def _declared(interface: Interface) -> Iterator[tuple[str, str]]:
    """Yield the rules, by the names that TOML files have for them."""
    yield "image_mode", interface.image.mode
    yield "drop_policy", interface.drop_policy
    yield "lane_change", interface.lane_change
    yield "big", _text(interface.big)
    if interface.curvature is not None:
        yield "curvature_scale", _text(interface.curvature.scale)
    for field in fields(interface.action):
        yield f"action.{field.name}", _text(getattr(interface.action, field.name))


def _part(part: ModelPart) -> Iterator[Row]:
    yield f"{part.role}: width", str(part.width), DERIVED
    for name, (shape, kind) in part.inputs.items():
        yield f"{part.role}: input {name}", f"{kind} ({', '.join(map(str, shape))})", DERIVED
    for name, (start, stop) in part.slices.items():
        yield f"{part.role}: head {name}", f"{stop - start} from {start}", DERIVED


def _gap(interface: Interface) -> str:
    if not interface.image.gap:
        return "the newest images only"
    return f"two images, {interface.image.gap} frames apart"


def _history(rule: HistoryRule | None) -> str:
    if rule is None:
        return "none"
    when = "that of the frame included" if rule.current else "without that of the frame"
    return f"{rule.length} samples, every {rule.step} frames, {when}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
