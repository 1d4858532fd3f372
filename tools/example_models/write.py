"""Writes example models as files, each whole or not at all."""

import difflib
from pathlib import Path

from runtime.files.user_file import whole_file
from scheduler.driving.revisions import load_monitoring, load_revisions
from tools.errors import UsageError
from tools.example_models import (
    ExampleModel,
    build_driver_monitoring,
    build_example,
    build_revision,
)


def write_models(
    directory: Path, names: tuple[str, ...], seed: int = 0
) -> list[tuple[Path, ExampleModel]]:
    """Write example models as `<directory>/<name>.onnx`; each file appears whole or not at all.

    The directory is made with its parents. The result has the path and the model of each file, in
    the order of `names`.

    Raises:
        UsageError: the directory cannot be made or written to.
    """
    return [_write(directory, build_example(name, seed)) for name in names]


def write_interface(
    directory: Path, interface: str, seed: int = 0
) -> list[tuple[Path, ExampleModel]]:
    """Write small models of a revision as `<directory>/<role>.onnx`, each whole or not at all.

    That of driver monitoring is `<directory>/dmonitoring.onnx`. The directory is made with its
    parents. The result has the path and the model of each file, in the order in which they run in a
    frame.

    Raises:
        UsageError: an unknown interface, or a directory that cannot be made or written to.
    """
    revisions, monitoring = load_revisions(), load_monitoring()
    known = [*revisions, *monitoring]
    if interface not in known:
        near = difflib.get_close_matches(interface, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"--interface: expected one of {', '.join(known)}, found {interface!r}{hint}"
        )
    if interface in monitoring:
        return [_write(directory, build_driver_monitoring(monitoring[interface], seed))]
    return [_write(directory, model) for model in build_revision(revisions[interface], seed)]


def _write(directory: Path, model: ExampleModel) -> tuple[Path, ExampleModel]:
    path = directory / f"{model.name}.onnx"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(model.data)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}); name another directory"
        ) from error
    return path, model
