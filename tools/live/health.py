"""The daemon's health as plain values for the page: state, stages of a frame, faults, model."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from tools.service.health_judge import Health, problems_of, quantile_ms, stages_since

_SHA_DIGITS = 12


def describe_health(health: Health, earlier: Health | None) -> dict[str, Any]:
    """Return what the page shows of a daemon.

    Args:
        health: what it says.
        earlier: what it said some seconds before, for times since then; None: since its start.
    """
    bounds = list(health["stageBounds"])
    return {
        "phase": health["phase"],
        "problems": problems_of(health),
        "uptime": health["uptime"],
        "process": health["processId"],
        "model": PurePath(health["model"]).name,
        "digest": health["modelSha256"][:_SHA_DIGITS],
        "isFallback": health["isFallback"],
        "checkpoints": [f"{one['role']} {one['name']}" for one in health["checkpoints"]],
        "device": health["device"],
        "driver": health["driver"],
        "selfTest": health["selfTest"]["result"],
        "frames": {
            name: health[name] for name in ("frames", "published", "publishedValid", "dropped")
        },
        "rate": health["recentPublished"] / health["recentTime"] if health["recentTime"] else 0.0,
        "faults": [
            {"name": one["name"], "count": one["count"], "recent": one["recent"]}
            for one in health["faults"]
            if one["count"]
        ],
        "memory": health["memory"],
        "bounds": bounds,
        "sinceStart": earlier is None,
        "stages": [
            {
                "name": stage["name"],
                "counts": list(stage["counts"]),
                "median": quantile_ms(bounds, stage["counts"], 0.5),
                "p99": quantile_ms(bounds, stage["counts"], 0.99),
            }
            for stage in stages_since(health, earlier)
        ],
    }
