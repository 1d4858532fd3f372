"""A model that fails is given up for one that works: in the loop, at the start, over restarts."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import runtime
from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat, MemoryFrameSource
from cereal.schema import read_event
from cereal.transport import MemoryTransport
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.daemon import Daemon
from modeld.drive_memory import DriveMemory, state_directory
from modeld.driving_model import check_interface, try_driving
from modeld.errors import ModelInterfaceError, StoreError
from modeld.load_models import Before, Loader, ModelKind, load_models
from modeld.loop_state import Fault, LoopState
from modeld.model_store import ModelStore
from modeld.side_reports import DriveKeeper
from modeld.store_manifest import ModelId
from runtime.errors import ArtifactError, RuntimeFault
from tests.modeld.fake_program import FakeProgram, make_interface
from tests.modeld.test_real_program import make_manifest

FrameOf = Callable[..., Frame]
CAMERAS = DeviceCameras(Camera(64, 32, 90.0), Camera(64, 32, 45.0))
PLAN_SPEED = 3  # column of the plan: metres per second ahead


class Bench:
    """A daemon with two scripted programs; that of the fallback speaks of 7 m/s, the other of 3."""

    def __init__(
        self,
        form: FrameFormat,
        frame_of: FrameOf,
        *,
        lane_change: str = "A",
        room: int | None = None,
    ) -> None:
        self.frame_of = frame_of
        self.first = FakeProgram(make_interface(), form.size)
        interface = make_interface(lane_change=lane_change)
        self.second = FakeProgram(interface, form.size if room is None else room)
        self.first.policy[0, PLAN_SPEED], self.second.policy[0, PLAN_SPEED] = 3.0, 7.0
        self.road = MemoryFrameSource(form)
        transport = MemoryTransport()
        self.clock = ManualClock(1_000_000_000)
        self.received = transport.subscriber("modelV2")
        self.daemon = Daemon(
            Config(cameras=CAMERAS, non_finite_limit=3),
            self.first,
            transport,
            self.clock,
            self.road,
            fallback=self.second,
        )
        self.daemon.calibration.update([0.0, 0.0, 0.0], "", "")

    def step(self, frame_id: int) -> tuple[bool, float]:
        """Return whether the message about a frame is valid, and the speed that it speaks of."""
        self.clock.advance_ns(50_000_000)
        self.road.push(self.frame_of(frame_id))
        self.daemon.step()
        data = self.received.receive(0)
        assert data is not None
        event = read_event(data)
        assert event.modelV2.frameId == frame_id
        return event.valid, event.modelV2.velocity.x[0]


@pytest.fixture
def bench(small_format: FrameFormat, frame_of: FrameOf) -> Bench:
    return Bench(small_format, frame_of)


def fail(text: str) -> Callable[[], None]:
    def raises() -> None:
        raise RuntimeFault(text)

    return raises


def test_an_error_of_the_device_costs_one_frame(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = bench.daemon
    assert bench.step(0) == (True, 3.0)
    bench.first.on_run = fail("gpu: device lost")
    # The frame is answered all the same, with what was known last, and not to be acted on.
    assert bench.step(1) == (False, 3.0)
    assert daemon.state.reasons == ("device failed",)
    assert bench.step(2) == (True, 7.0)
    assert bench.step(3) == (True, 7.0)
    assert daemon.state.fallback == "gpu: device lost"
    assert daemon.state.faults[Fault.DEVICE_ERROR] == 1
    assert daemon.take_over is None
    (said,) = [r.message for r in caplog.records if r.levelno == logging.ERROR]
    assert said.startswith("model given up: gpu: device lost; going on with the fallback model ")


def test_an_error_while_a_frame_is_only_queued_counts_too(bench: Bench) -> None:
    assert bench.step(0) == (True, 3.0)
    bench.first.on_run = fail("gpu: device lost")
    bench.clock.advance_ns(50_000_000)
    bench.road.push(bench.frame_of(2))  # frame 1 is missing: this one is prepared
    assert bench.daemon.step() is not None
    assert bench.received.receive(0) is None
    assert bench.step(3) == (True, 7.0)


def test_outputs_that_stay_not_finite_are_given_up_on(bench: Bench) -> None:
    bench.first.policy[0, 5] = np.nan
    assert [bench.step(n)[0] for n in range(2)] == [False, False]
    bench.first.policy[0, 5] = 0.0
    assert bench.step(2) == (True, 3.0)  # not in a row
    bench.first.policy[0, 5] = np.inf
    assert [bench.step(n) for n in range(3, 6)] == [(False, 3.0)] * 3
    assert bench.step(6) == (True, 7.0)
    assert bench.daemon.state.fallback == "outputs of 3 runs in a row are not finite"
    assert bench.daemon.state.faults[Fault.NOT_FINITE] == 5


def test_without_another_model_an_error_is_the_process_to_handle(bench: Bench) -> None:
    assert bench.daemon.take_over is not None
    bench.daemon.take_over("tried")
    assert bench.step(0) == (True, 7.0)
    bench.second.on_run = fail("gpu: device lost")
    bench.road.push(bench.frame_of(1))
    with pytest.raises(RuntimeFault, match="device lost"):
        bench.daemon.step()


def test_a_fallback_without_room_for_the_frames_is_done_without(
    small_format: FrameFormat, frame_of: FrameOf, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(small_format, frame_of, room=small_format.payload_bytes - 1)
    before = bench.daemon.take_over
    assert before is not None  # no frame is known yet
    assert [bench.step(n) for n in range(3)] == [(True, 3.0)] * 3
    assert bench.daemon.take_over is None
    (said,) = [r.message for r in caplog.records if r.levelno == logging.ERROR]
    assert said.startswith("fallback model not usable, going on without one: road camera, frame 0:")
    assert f"expected at most {small_format.payload_bytes - 1} bytes" in said
    assert bench.daemon.state.problems == (said,)
    # A fault is the process to handle, instead of a model that can use no frame.
    bench.first.on_run = fail("gpu: device lost")
    bench.road.push(bench.frame_of(3))
    with pytest.raises(RuntimeFault, match="device lost"):
        bench.daemon.step()
    assert bench.daemon.state.fallback == ""


def test_a_fallback_with_just_enough_room_is_kept(
    small_format: FrameFormat, frame_of: FrameOf
) -> None:
    bench = Bench(small_format, frame_of, room=small_format.payload_bytes)
    assert bench.step(0) == (True, 3.0)
    bench.first.on_run = fail("gpu: device lost")
    assert [bench.step(n) for n in (1, 2)] == [(False, 3.0), (True, 7.0)]
    assert bench.daemon.state.problems == ()


@pytest.mark.parametrize(("machine", "kept"), [("A", True), ("B", False)])
def test_a_lane_change_goes_on_where_the_machines_are_alike(
    small_format: FrameFormat, frame_of: FrameOf, machine: str, kept: bool
) -> None:
    bench = Bench(small_format, frame_of, lane_change=machine)
    before = bench.daemon.lane_change
    assert bench.daemon.take_over is not None
    bench.daemon.take_over("tried")
    assert (bench.daemon.lane_change is before) is kept


# --- at the start -----------------------------------------------------------------------------


def write(path: Path, form: FrameFormat, *, kind: str = "driving") -> Path:
    runtime.write_artifact(path, {**make_manifest(form.size), "kind": kind}, b"")
    return path


KINDS = {
    "driving": ModelKind(check_interface, try_driving),
    "monitoring": ModelKind(lambda _metadata: None, lambda _program: None),
}


@pytest.mark.opencl
def test_models_that_load_are_both_there(tmp_path: Path, small_format: FrameFormat) -> None:
    config = Config(
        model=write(tmp_path / "a.pkl", small_format),
        fallback_model=write(tmp_path / "b.pkl", small_format),
    )
    with ExitStack() as resources:
        models = load_models(Loader(config, KINDS, resources), Before())
        assert models.fallback is not None
        assert (models.first.path.name, models.fallback.path.name) == ("a.pkl", "b.pkl")
        assert models.reason == ""


@pytest.mark.opencl
def test_a_damaged_model_leaves_the_fallback(
    tmp_path: Path, small_format: FrameFormat, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.pkl").write_bytes(b"no artifact")
    config = Config(
        model=tmp_path / "a.pkl", fallback_model=write(tmp_path / "b.pkl", small_format)
    )
    with ExitStack() as resources:
        models = load_models(Loader(config, KINDS, resources), Before())
        assert models.first.path.name == "b.pkl"
        assert models.fallback is None
        assert "a.pkl" in models.reason
        assert "not a modeld artifact" in models.reason
    assert "model not usable, the fallback model is taken" in caplog.text


def test_where_both_are_damaged_the_first_is_the_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.pkl", "b.pkl"):
        (tmp_path / name).write_bytes(name.encode())
    config = Config(model=tmp_path / "a.pkl", fallback_model=tmp_path / "b.pkl")
    with pytest.raises(ArtifactError, match=r"a\.pkl"), ExitStack() as resources:
        load_models(Loader(config, KINDS, resources), Before())
    assert "fallback model not usable either" in caplog.text


@pytest.mark.opencl
@pytest.mark.parametrize("broken", ["missing", "of another kind"])
def test_without_a_usable_fallback_the_model_is_run_alone(
    tmp_path: Path, small_format: FrameFormat, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    if broken == "of another kind":
        write(tmp_path / "b.pkl", small_format, kind="monitoring")
    config = Config(
        model=write(tmp_path / "a.pkl", small_format), fallback_model=tmp_path / "b.pkl"
    )
    with ExitStack() as resources:
        models = load_models(Loader(config, KINDS, resources), Before())
        assert (models.first.path.name, models.fallback, models.reason) == ("a.pkl", None, "")
        (problem,) = models.problems
    assert problem.startswith("fallback model not usable, going on without one")
    assert problem in caplog.text


@pytest.mark.opencl
def test_a_drive_goes_on_with_the_fallback_after_a_restart(
    tmp_path: Path, small_format: FrameFormat
) -> None:
    config = Config(
        model=tmp_path / "not looked at.pkl",
        fallback_model=write(tmp_path / "b.pkl", small_format),
    )
    with ExitStack() as resources:
        models = load_models(Loader(config, KINDS, resources), Before("it hung"))
        assert (models.first.path.name, models.reason) == ("b.pkl", "it hung")


@pytest.mark.opencl
@pytest.mark.parametrize(("unfinished", "taken"), [("a.pkl", "b.pkl"), ("b.pkl", "a.pkl")])
def test_a_model_whose_loading_did_not_end_is_done_without(
    tmp_path: Path, small_format: FrameFormat, unfinished: str, taken: str
) -> None:
    # As left by a process that was killed while one of them hung the device.
    memory = DriveMemory(tmp_path)
    memory.load(tmp_path / unfinished)
    config = Config(
        model=write(tmp_path / "a.pkl", small_format),
        fallback_model=write(tmp_path / "b.pkl", small_format),
    )
    with ExitStack() as resources:
        loader = Loader(config, KINDS, resources, on_load=memory.load)
        with memory.loading() as found:
            models = load_models(loader, Before(unfinished=found))
        assert (models.first.path.name, models.fallback) == (taken, None)
        assert bool(models.reason) == (taken == "b.pkl")
    with memory.loading() as found:
        assert found == ""  # it came to its end


@pytest.mark.opencl
def test_without_a_usable_fallback_the_model_that_failed_is_tried_again(
    tmp_path: Path, small_format: FrameFormat, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(
        model=write(tmp_path / "a.pkl", small_format), fallback_model=tmp_path / "gone.pkl"
    )
    with ExitStack() as resources:
        models = load_models(Loader(config, KINDS, resources), Before("it hung"))
        assert (models.first.path.name, models.fallback, models.reason) == ("a.pkl", None, "")
    assert "fallback model not usable, the other one is tried" in caplog.text


@pytest.mark.opencl
def test_a_device_that_comes_back_between_both_models_does_not_end_the_fallback(
    tmp_path: Path, small_format: FrameFormat, caplog: pytest.LogCaptureFixture
) -> None:
    first, safe = (write(tmp_path / name, small_format) for name in ("a.pkl", "b.pkl"))
    content = safe.read_bytes()
    safe.write_bytes(b"as if the device refused it")

    def come_back(path: Path) -> None:
        if path == first:
            safe.write_bytes(content)

    config = Config(model=first, fallback_model=safe)
    with ExitStack() as resources:
        loader = Loader(config, KINDS, resources, on_load=come_back)
        models = load_models(loader, Before("it hung"))
        assert (models.first.path.name, models.fallback) == ("b.pkl", None)
        assert (models.reason, models.is_remembered) == ("it hung", True)
    assert "fallback model not usable, the other one is tried" in caplog.text


@pytest.mark.opencl
def test_outputs_that_are_not_those_of_the_metadata_are_found_while_loading(
    tmp_path: Path, small_format: FrameFormat
) -> None:
    manifest = make_manifest(small_format.size)
    (policy,) = [b for b in manifest["buffers"] if b["name"] == "policy_outputs"]
    policy["shape"] = [1, 500]
    policy["size"] = 4 * 500
    manifest["kernels"][2]["global"] = [500, 1, 1]
    runtime.write_artifact(tmp_path / "a.pkl", manifest, b"")
    config = Config(
        model=tmp_path / "a.pkl", fallback_model=write(tmp_path / "b.pkl", small_format)
    )
    with ExitStack() as resources:
        models = load_models(Loader(config, KINDS, resources), Before())
        assert models.first.path.name == "b.pkl"
        assert "policy_outputs: expected float32 (1, 1000)" in models.reason


def test_artifacts_of_other_kinds_are_refused(tmp_path: Path, small_format: FrameFormat) -> None:
    config = Config(model=write(tmp_path / "a.pkl", small_format, kind="plain"))
    with pytest.raises(ModelInterfaceError, match="without --plain"), ExitStack() as resources:
        load_models(Loader(config, KINDS, resources), Before())


# --- what is remembered -----------------------------------------------------------------------


def test_a_note_is_kept_until_it_is_cleared(tmp_path: Path) -> None:
    memory = DriveMemory(tmp_path)
    assert memory.fallback.read() == ""
    memory.fallback.write("it hung")
    memory.model.write("/a.pkl")
    again = DriveMemory(tmp_path)
    assert (again.fallback.read(), again.model.read()) == ("it hung", "/a.pkl")
    memory.end_drive()
    memory.end_drive()
    assert memory.fallback.read() == memory.model.read() == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", "\x80", '{"boot_id": "another", "text": "x"}'])
def test_a_note_of_another_boot_or_a_damaged_one_is_not_followed(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "fallback.json").write_text(content, encoding="latin-1")
    assert DriveMemory(tmp_path).fallback.read() == ""


def test_a_directory_that_is_gone_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = DriveMemory(tmp_path / "gone").fallback
    note.write("it hung")
    assert "not remembered: No such file" in caplog.text
    assert note.read() == ""
    note.clear()
    nowhere = DriveMemory(None)
    nowhere.fallback.write("it hung")
    assert nowhere.fallback.read() == ""
    nowhere.end_drive()


def test_a_drive_is_remembered_from_its_first_message_until_the_car_is_parked(
    tmp_path: Path,
) -> None:
    memory, state = DriveMemory(tmp_path), LoopState()
    keeper = DriveKeeper(memory, state, Path("/a.pkl"))
    keeper(True)
    assert memory.model.read() == ""
    state.published = 1
    keeper(False)
    assert memory.model.read() == "/a.pkl"
    state.fallback = "it hung"
    keeper(False)
    assert memory.fallback.read() == "it hung"
    state.published = 9
    keeper(True)
    assert memory.model.read() == ""
    keeper(False)
    assert memory.model.read() == ""  # parked cars publish nothing
    state.published = 10
    keeper(False)
    assert memory.model.read() == "/a.pkl"


@pytest.mark.opencl
def test_a_drive_goes_on_with_the_model_that_it_began_with(
    tmp_path: Path, small_format: FrameFormat
) -> None:
    store = ModelStore(tmp_path / "store")
    for name in ("a", "b"):
        path = write(tmp_path / f"{name}.pkl", small_format)
        store.add(path, ModelId(name, "1"), now_s=0.0, self_test=lambda _path: None)
    store.select(ModelId("a", "1"), "driving", self_test=lambda _path: None)
    begun = store.path_of(ModelId("a", "1"))
    store.select(ModelId("b", "1"), "driving", self_test=lambda _path: None)
    config = Config(models_dir=store.directory)
    with ExitStack() as resources:
        loader = Loader(config, KINDS, resources)
        models = load_models(loader, Before(model=str(begun)))
        assert (models.first.path, models.is_remembered) == (begun, True)
        # What is not of the store is no model of a drive.
        for other in ("", str(tmp_path / "a.pkl"), str(begun.with_name("gone"))):
            models = load_models(loader, Before(model=other))
            assert models.first.path == store.path_of(ModelId("b", "1"))
            assert not models.is_remembered


def stored(directory: Path, form: FrameFormat, *, first_is_usable: bool = True) -> ModelStore:
    """A store of a and b, of which b is selected and a was before."""
    store = ModelStore(directory / "store")
    for name in ("a", "b"):
        manifest = make_manifest(form.size)
        if name == "b" and not first_is_usable:
            manifest["metadata"] = {}  # whole, but nothing that the loop could run
        runtime.write_artifact(directory / f"{name}.pkl", manifest, b"")
        model = ModelId(name, "1")
        store.add(directory / f"{name}.pkl", model, now_s=0.0, self_test=lambda _path: None)
        store.select(model, "driving", self_test=lambda _path: None)
    return store


def replace_by_another(path: Path, form: FrameFormat) -> None:
    """Put an artifact that is sound, and not the one that was added."""
    other = path.with_name("other.pkl")
    runtime.write_artifact(other, {**make_manifest(form.size), "name": "another"}, b"")
    path.write_bytes(other.read_bytes())
    other.unlink()


@pytest.mark.opencl
def test_the_model_of_a_drive_is_checked_before_it_is_loaded_again(
    tmp_path: Path, small_format: FrameFormat
) -> None:
    store = stored(tmp_path, small_format)
    begun, selected = (store.path_of(ModelId(name, "1")) for name in ("a", "b"))
    replace_by_another(begun, small_format)
    config = Config(models_dir=store.directory)
    loaded: list[Path] = []
    with ExitStack() as resources:
        loader = Loader(config, KINDS, resources, on_load=loaded.append)
        models = load_models(loader, Before(model=str(begun)))
        assert (models.first.path, models.is_remembered) == (selected, False)
    assert loaded == [selected]
    assert any("expected sha256" in text or "bytes, found" in text for text in models.problems)


def test_the_model_before_the_selected_one_is_checked_before_it_is_loaded(
    tmp_path: Path, small_format: FrameFormat
) -> None:
    store = stored(tmp_path, small_format, first_is_usable=False)
    before, selected = (store.path_of(ModelId(name, "1")) for name in ("a", "b"))
    replace_by_another(before, small_format)
    loaded: list[Path] = []
    config = Config(models_dir=store.directory)
    with ExitStack() as resources:
        loader = Loader(config, KINDS, resources, on_load=loaded.append)
        with pytest.raises(StoreError, match=r"a@1/artifact\.pkl: expected"):
            load_models(loader, Before())
    assert loaded == [selected]


@pytest.mark.opencl
def test_a_selected_model_whose_loading_did_not_end_gives_way_to_the_one_before(
    tmp_path: Path, small_format: FrameFormat, caplog: pytest.LogCaptureFixture
) -> None:
    store = stored(tmp_path, small_format)
    before, selected = (store.path_of(ModelId(name, "1")) for name in ("a", "b"))
    with ExitStack() as resources:
        loader = Loader(Config(models_dir=store.directory), KINDS, resources)
        # Also where the drive began with it.
        for kept in ("", str(selected)):
            models = load_models(loader, Before(model=kept, unfinished=str(selected)))
            assert (models.first.path, models.fallback, models.reason) == (before, None, "")
            (problem,) = models.problems
            assert problem in caplog.text
            assert problem.startswith(f"model not usable, the one before is taken: {selected}: ")


@pytest.mark.opencl
def test_the_only_model_is_tried_again_though_its_loading_did_not_end(
    tmp_path: Path, small_format: FrameFormat
) -> None:
    model = write(tmp_path / "a.pkl", small_format)
    with ExitStack() as resources:
        loader = Loader(Config(model=model), KINDS, resources)
        models = load_models(loader, Before(unfinished=str(model)))
        assert (models.first.path, models.problems) == (model, ())


def test_state_lies_where_the_service_manager_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    assert state_directory(None) is None
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/modeld:/run/other")
    assert state_directory(None) == Path("/run/modeld")
    assert state_directory(Path("/x")) == Path("/x")
