"""The statistics of a program: sizes from the manifest, load time, and counters of runs."""

from dataclasses import dataclass

from runtime.manifest import Manifest


@dataclass(slots=True)
class ProgramStats:
    """Facts about a loaded program, and counters that `run` keeps."""

    device: str
    driver: str
    kernels: int  # distinct kernel functions
    launches: dict[str, int]  # per entry
    arena_bytes: int
    weight_bytes: int
    state_bytes: int
    load_ms: float
    built_from_source: int  # programs that were neither in the artifact nor in the cache
    runs: int = 0
    last_run_ms: float = 0.0


def make_stats(
    manifest: Manifest, device: str, driver: str, built_from_source: int
) -> ProgramStats:
    """Return the stats of a program that was just loaded; `load_ms` is still to be filled in."""
    sizes = dict.fromkeys(("weight", "state"), 0)
    for buffer in manifest.buffers:
        if buffer.kind in sizes:
            sizes[buffer.kind] += buffer.size
    return ProgramStats(
        device=device,
        driver=driver,
        kernels=len({(kernel.program, kernel.name) for kernel in manifest.kernels}),
        launches={entry.name: len(entry.launches) for entry in manifest.entries},
        arena_bytes=manifest.arena_size,
        weight_bytes=sizes["weight"],
        state_bytes=sizes["state"],
        load_ms=0.0,
        built_from_source=built_from_source,
    )
