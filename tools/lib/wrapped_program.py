"""A wrapper around a driving program, the loaded artifact of a driving model.

Subclasses override single methods, for example to record the inputs or to change the outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from modeld.model.driving_model import DrivingProgram
    from runtime.run.entry import TensorSpec


class WrappedProgram:
    """A driving program that forwards everything to `inner`."""

    def __init__(self, inner: DrivingProgram) -> None:
        self._inner = inner

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entry points."""
        return self._inner.entries

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The artifact's metadata."""
        return self._inner.metadata

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        """Return the inputs of an entry."""
        return self._inner.entry_inputs(entry)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Run an entry; the next run overwrites the returned arrays."""
        return self._inner.run(inputs, entry)

    def reset(self) -> None:
        """Reset the state buffers."""
        self._inner.reset()
