"""Which models are loaded at the start: of two paths, of a store, after what went wrong before."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import runtime
from cereal.errors import TransportError
from modeld.errors import ModelInterfaceError, StoreError
from modeld.model.driving_model import check_interface, try_driving
from modeld.model.load_models import Before, Loader, ModelKind, Models, load_models
from modeld.service.config import Config
from modeld.state.drive_memory import DriveMemory
from modeld.store.model_store import ModelStore
from modeld.store.records import ModelId
from runtime.errors import ArtifactError
from tests.modeld.bench import Log
from tests.modeld.fake_program import SMALL
from tests.tools.tiny_driving import SOURCE, _Builder

KINDS = {
    "driving": ModelKind(check_interface, try_driving),
    "monitoring": ModelKind(lambda _metadata: None, lambda _program: None),
}


def write(path: Path, what: str = "driving") -> Path:
    """Put an artifact: a sound one, or of another kind, one that is "damaged", none if "missing".

    The policy's vector of a "narrow" one is too short for its metadata, an "unusable" one has none.
    """
    if what == "damaged":
        path.write_bytes(path.name.encode())
    if what in ("damaged", "missing"):
        return path
    source = SOURCE.replace("BAD_FRAME", "-1").replace("HANG", "")
    builder = _Builder(SMALL.payload_bytes, source, 15.0, what)
    manifest = builder.manifest()
    if what == "narrow":
        (policy,) = [b for b in manifest["buffers"] if b["name"] == "policy_outputs"]
        policy["shape"], policy["size"] = [1, 500], 4 * 500
        manifest["kernels"][2]["global"] = [500, 1, 1]
    elif what == "unusable":
        manifest["metadata"] = {}
    elif what in ("monitoring", "plain"):
        manifest["kind"] = what
    runtime.write_artifact(path, manifest, builder.data)
    return path


def load(
    before: Before | None = None,
    on_load: Callable[[Path], None] = lambda _path: None,
    **settings: Any,
) -> Models:
    with ExitStack() as resources:
        loader = Loader(Config(**settings), KINDS, resources, on_load=on_load)
        return load_models(loader, before or Before())


ALONE = "fallback model not usable, continuing without one"
TAKEN = "model not usable, using the fallback model"
OTHER = "fallback model not usable, trying the configured one"


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("contents", "hung", "taken", "reason_and_problem"),
    [
        ("driving driving", "", ("a.pkl", "b.pkl"), ("", "")),
        ("damaged driving", "", ("b.pkl", None), ("a.pkl: not a modeld artifact", TAKEN)),
        ("narrow driving", "", ("b.pkl", None), ("_outputs: expected float32 (1, 1000)", TAKEN)),
        ("driving missing", "", ("a.pkl", None), ("", ALONE)),
        ("driving monitoring", "", ("a.pkl", None), ("", ALONE)),
        # A drive goes on with the fallback after a restart; the other is not looked at.
        ("missing driving", "it hung", ("b.pkl", None), ("it hung", "")),
        # Without a usable fallback the model that failed is tried again.
        ("driving missing", "it hung", ("a.pkl", None), ("", OTHER)),
    ],
)
def test_which_of_two_models_is_run(
    tmp_path: Path,
    contents: str,
    hung: str,
    taken: tuple[str, str | None],
    reason_and_problem: tuple[str, str],
    caplog: Log,
) -> None:
    a, b = (write(tmp_path / f"{n}.pkl", w) for n, w in zip("ab", contents.split(), strict=True))
    models = load(Before(hung), model=a, fallback_model=b)
    reason, problem = reason_and_problem
    assert (models.first.path.name, models.fallback and models.fallback.path.name) == taken
    assert (reason in models.reason) if reason else models.reason == ""
    assert models.is_remembered is (models.reason == "it hung")
    assert [text.split(":")[0] for text in models.problems] == ([problem] if problem else [])
    assert all(text in caplog.text for text in models.problems)


def test_where_both_are_damaged_the_first_is_the_error(tmp_path: Path, caplog: Log) -> None:
    paths = [write(tmp_path / name, "damaged") for name in ("a.pkl", "b.pkl")]
    with pytest.raises(ArtifactError, match=r"a\.pkl"):
        load(model=paths[0], fallback_model=paths[1])
    assert "fallback model not usable either" in caplog.text


def test_artifacts_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInterfaceError, match="without --plain"):
        load(model=write(tmp_path / "a.pkl", "plain"))


@pytest.mark.opencl
@pytest.mark.parametrize(("unfinished", "taken"), [("a.pkl", "b.pkl"), ("b.pkl", "a.pkl")])
def test_a_model_whose_loading_did_not_end_is_done_without(
    tmp_path: Path, unfinished: str, taken: str
) -> None:
    # As left by a process that was killed while one of them hung the device.
    memory = DriveMemory(tmp_path)
    memory.load(tmp_path / unfinished)
    a, b = (write(tmp_path / name) for name in ("a.pkl", "b.pkl"))
    with memory.loading() as found:
        models = load(Before(unfinished=found), memory.load, model=a, fallback_model=b)
    assert (models.first.path.name, models.fallback) == (taken, None)
    assert bool(models.reason) == (taken == "b.pkl")
    assert len(models.problems) == (taken == "a.pkl")
    assert not models.is_remembered
    with memory.loading() as found:
        assert found == ""  # it came to its end


@pytest.mark.opencl
def test_the_only_model_is_tried_again_though_its_loading_did_not_end(tmp_path: Path) -> None:
    model = write(tmp_path / "a.pkl")
    models = load(Before(unfinished=str(model)), model=model)
    assert (models.first.path, models.problems) == (model, ())


@pytest.mark.opencl
def test_a_device_that_comes_back_between_both_models_does_not_end_the_fallback(
    tmp_path: Path, caplog: Log
) -> None:
    first, safe = (write(tmp_path / name) for name in ("a.pkl", "b.pkl"))
    content = safe.read_bytes()
    safe.write_bytes(b"as if the device refused it")

    def come_back(path: Path) -> None:
        if path == first:
            safe.write_bytes(content)

    models = load(Before("it hung"), come_back, model=first, fallback_model=safe)
    assert (models.first.path.name, models.fallback) == ("b.pkl", None)
    assert (models.reason, models.is_remembered) == ("it hung", True)
    assert OTHER in caplog.text


def stored(directory: Path, b: str = "driving") -> tuple[ModelStore, Path, Path]:
    """A store of a and b, of which b is selected and a was before; the paths of both."""
    store = ModelStore(directory / "store")
    for name, what in (("a", "driving"), ("b", b)):
        model = ModelId(name, "1")
        artifact = write(directory / f"{name}.pkl", what)
        store.add(artifact, model, now_s=0.0, self_test=lambda _path: None)
        store.select(model, "driving", self_test=lambda _path: None)
    return store, store.path_of(ModelId("a", "1")), store.path_of(ModelId("b", "1"))


@pytest.mark.opencl
def test_a_drive_goes_on_with_the_model_that_it_began_with(tmp_path: Path) -> None:
    store, begun, selected = stored(tmp_path)
    # What is not of the store is no model of a drive.
    others = ("", str(tmp_path / "a.pkl"), str(begun.with_name("gone")))
    for kept, first in ((str(begun), begun), *((other, selected) for other in others)):
        models = load(Before(model=kept), models_dir=store.directory)
        assert (models.first.path, models.is_remembered) == (first, first == begun)
        assert models.fallback is None


@pytest.mark.opencl
def test_a_damaged_selected_model_gives_way_to_the_one_before(tmp_path: Path) -> None:
    store, before, selected = stored(tmp_path)
    write(selected, "damaged")
    models = load(models_dir=store.directory)
    assert (models.first.path, models.reason) == (before, "")
    (problem,) = models.problems
    assert problem.startswith("model of the store not usable: ")
    assert "b@1/artifact.pkl: expected" in problem
    write(before, "damaged")
    with pytest.raises(StoreError, match="add it again, or choose another with modeld models"):
        load(models_dir=store.directory)


@pytest.mark.opencl
def test_the_fallback_of_the_store_is_loaded_too(tmp_path: Path) -> None:
    store, before, selected = stored(tmp_path)
    store.select(ModelId("a", "1"), "fallback", self_test=lambda _path: None)
    models = load(models_dir=store.directory)
    assert models.fallback is not None
    assert (models.first.path, models.fallback.path) == (selected, before)


@pytest.mark.opencl
def test_the_model_of_a_drive_is_checked_before_it_is_loaded_again(tmp_path: Path) -> None:
    store, begun, selected = stored(tmp_path)
    write(begun, "another")  # sound, and not the one that was added
    loaded: list[Path] = []
    models = load(Before(model=str(begun)), loaded.append, models_dir=store.directory)
    assert (models.first.path, models.is_remembered) == (selected, False)
    assert loaded == [selected]
    assert any("expected file sha256" in text or "bytes, found" in text for text in models.problems)


def test_the_model_before_the_selected_one_is_checked_before_it_is_loaded(tmp_path: Path) -> None:
    # Whole, but nothing that the loop could run.
    store, before, selected = stored(tmp_path, "unusable")
    write(before, "another")
    loaded: list[Path] = []
    with pytest.raises(StoreError, match=r"a@1/artifact\.pkl: expected"):
        load(None, loaded.append, models_dir=store.directory)
    assert loaded == [selected]


@pytest.mark.opencl
@pytest.mark.parametrize("began_with_it", [False, True])
def test_a_selected_model_whose_loading_did_not_end_gives_way_to_the_one_before(
    tmp_path: Path, began_with_it: bool, caplog: Log
) -> None:
    store, before, selected = stored(tmp_path)
    kept = str(selected) if began_with_it else ""
    models = load(Before(model=kept, unfinished=str(selected)), models_dir=store.directory)
    assert (models.first.path, models.fallback, models.reason) == (before, None, "")
    (problem,) = models.problems
    assert problem in caplog.text
    assert problem.startswith(f"model not usable, using the previous one: {selected}: ")


def test_whose_place_on_the_bus_is_taken_loads_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / name) for name in ("a.pkl", "b.pkl")]
    monkeypatch.setattr(runtime, "load_program", lambda *_a, **_k: pytest.fail("it was loaded"))

    def refuse(kind: str) -> None:
        raise TransportError(f"{kind}: expected one publisher")

    config = Config(model=paths[0], fallback_model=paths[1])
    loader = Loader(config, KINDS, ExitStack(), on_kind=refuse)
    with pytest.raises(TransportError, match="driving: expected one"):
        load_models(loader, Before())
