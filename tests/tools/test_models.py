"""The command models: what it prints, what it refuses, and who it asks before it switches."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from modeld.health.snapshot import ServiceFacts
from modeld.state.loop_state import LoopState, Phase
from modeld.store.model_store import ModelStore
from modeld.store.records import ModelId
from runtime.format.artifact import read_artifact as artifact_of
from runtime.format.artifact import write_artifact
from tests.modeld.bench import eventually
from tests.other_user import (
    OWN_GROUP,
    STRANGER,
    line,
    needs_root,
    open_directory,
    process_of,
    tell,
)
from tests.tools.conftest import Modeld, Said
from tests.tools.messages import event_of, repeating
from tests.tools.test_status import health_event
from tests.tools.tiny_driving import write_tiny_driving

__all__ = ["open_directory"]

Models = Callable[..., Said]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("artifacts")
    first = write_tiny_driving(place / "first.pkl", (64, 32))
    return first, write_tiny_driving(place / "second.pkl", (64, 32), bad_frame=1000)


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    """Options that name a store and a bus on which nobody is."""
    (tmp_path / "bus").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'bus_address = "ipc://{tmp_path}/bus"\n', encoding="utf-8")
    return ["--store", str(tmp_path / "store"), "--config", str(config)]


@pytest.fixture
def models(modeld: Modeld, place: list[str]) -> Models:
    return lambda code, *words: modeld(code, "models", *words, *place)


def add_both(models: Models, artifacts: tuple[Path, Path]) -> list[Said]:
    return [
        models(0, "add", artifact, "--name", "ex", "--version", version)
        for version, artifact in enumerate(artifacts, 1)
    ]


@pytest.mark.slow
@pytest.mark.opencl
def test_a_model_is_added_selected_and_taken_back(
    artifacts: tuple[Path, Path], models: Models
) -> None:
    first, _ = add_both(models, artifacts)
    assert first.out.startswith("ex@1: driving, ")
    assert first.out.endswith("\nactivate it with: modeld models select ex@1\n")
    assert models(0, "select", "ex@1").out.splitlines() == [
        "driving: ex@1 (nothing before)",
        "the daemon loads it at its next start, or with: systemctl reload modeld",
    ]
    assert models(0, "select", "ex@2").out.startswith("driving: ex@2 (before: ex@1)\n")
    found = models(0, "list", "--json").json
    assert found["selected"] == {"driving": {"current": "ex@2", "previous": "ex@1"}}
    assert [one["current"] for one in found["models"]] == [[], ["driving"]]
    assert [one["previous"] for one in found["models"]] == [["driving"], []]
    assert all(one["sound"] and one["problem"] is None for one in found["models"])
    assert models(0, "rollback", "--json").json["current"] == "ex@1"
    rows = [row.split() for row in models(0, "list").out.splitlines()]
    assert (
        " ".join(rows[0]) == "model version kind sha256 program size added selected running sound"
    )
    assert rows[1][:3] == ["ex", "1", "driving"]
    assert rows[1][-2:] == ["driving", "yes"]
    assert rows[2][-3:] == ["driving", "before", "yes"]
    assert rows[1][3] == artifact_of(artifacts[0]).sha256[:12]
    assert rows[1][4] == artifact_of(artifacts[0]).program_sha256[:12]
    models(0, "select", "ex@2", "--role", "fallback")
    assert models(0, "verify", "--run", "--json").json["problems"] == {"ex@1": None, "ex@2": None}


@pytest.mark.opencl
def test_the_same_again_under_another_version_is_said(
    artifacts: tuple[Path, Path], models: Models, tmp_path: Path
) -> None:
    source = artifact_of(artifacts[0])
    noted, raw = tmp_path / "noted.pkl", {**source.manifest.raw, "lineage": {"commit": "1a2b3c"}}
    write_artifact(noted, raw, bytes(source.data))
    models(0, "add", artifacts[0], "--name", "ex", "--version", "1")
    assert (
        "\nthe same artifact as ex@1\n"
        in models(0, "add", artifacts[0], "--name", "ex", "--version", "2").out
    )
    third = models(0, "add", noted, "--name", "ex", "--version", "3").out
    assert "\nlineage: commit=1a2b3c\n" in third
    assert "\nthe same program, compiled again, as ex@1\n" in third
    shown = models(0, "show", "ex@3").out
    assert re.search(r"^lineage commit +1a2b3c$", shown, re.MULTILINE)
    assert artifact_of(noted).sha256 in shown
    assert models(0, "show", "ex@3", "--json").json["lineage"] == {"commit": "1a2b3c"}


@pytest.mark.slow
@pytest.mark.opencl
def test_what_runs_is_said_and_not_removed(
    artifacts: tuple[Path, Path], models: Models, modeld: Modeld, place: list[str], tmp_path: Path
) -> None:
    add_both(models, artifacts)
    (tmp_path / "store/selection.json").write_text(
        '{"driving": {"current": "ex@2", "previous": ""}}', encoding="utf-8"
    )
    config = Path(place[-1])
    config.write_text(
        config.read_text("utf-8") + f'models_dir = "{tmp_path}/store"\n', encoding="utf-8"
    )
    facts = ServiceFacts("driving", model=str(tmp_path / "store/ex@1/artifact.pkl"))
    state = LoopState(phase=Phase.WAITING_CAR)
    with repeating(f"ipc://{tmp_path}/bus", ("modeldHealth", health_event(state, facts))):
        eventually(lambda: any((tmp_path / "bus").iterdir()))
        rows = [row.split() for row in models(0, "list").out.splitlines()]
        assert [row[-2:] for row in rows[1:]] == [["driving", "yes"]] * 2
        refusal = models(4, "remove", "ex@1").err
        assert "expected a model that does not run, but it does for driving" in refusal
        said = modeld(0, "status", "--config", config).out
        assert "\n  store      selected ex@2, running ex@1\n" in said
        found = modeld(0, "status", "--config", config, "--json").json["daemons"]["modeldHealth"]
        assert found["models"] == "selected ex@2, running ex@1"
    assert models(4, "remove", "ex@2").err.count("is not selected") == 1
    assert models(0, "remove", "ex@1").out == "ex@1: removed\n"
    assert not (tmp_path / "store/ex@1").exists()


@pytest.mark.opencl
def test_damage_is_one_line_for_each_model(
    artifacts: tuple[Path, Path], models: Models, tmp_path: Path
) -> None:
    store = ModelStore(tmp_path / "store")
    for artifact, number in zip(artifacts, "12", strict=True):
        store.add(artifact, ModelId("ex", number), now_s=0.0, self_test=lambda _path: None)
    for version in (1, 2):
        with (tmp_path / f"store/ex@{version}/artifact.pkl").open("r+b") as file:
            file.write(b"\0")
    for action in ("list", "verify"):
        lines = models(4, action).err.splitlines()
        assert len(lines) == 2
        assert all("expected file sha256" in one for one in lines)
    errors = models(4, "select", "ex@1").err
    assert errors.count("\n") == 1
    assert "ex@1/artifact.pkl: expected file sha256" in errors


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.parametrize("service", ["deviceState", "modelV2"])
def test_nothing_is_switched_while_the_car_drives(
    artifacts: tuple[Path, Path], models: Models, tmp_path: Path, service: str
) -> None:
    add_both(models, artifacts)
    for version in (1, 2):
        models(0, "select", f"ex@{version}")
    fields = {"started": True} if service == "deviceState" else {}
    with repeating(f"ipc://{tmp_path}/bus", (service, event_of(service, **fields))):
        for action in (["select", "ex@1"], ["rollback"]):
            refusal = models(4, *action).err
            assert "expected a parked car, but" in refusal
            assert service in refusal
            assert refusal.count("\n") == 1
        said = models(0, "rollback", "--force")
    assert said.out.startswith("driving: ex@1 (before: ex@2)")
    assert "although" in said.err


def test_the_car_is_asked_at_both_addresses(tmp_path: Path, models: Models) -> None:
    """Also where nobody has made the directory of the other one yet."""
    bus, silent, none = (f"ipc://{tmp_path}{place}" for place in ("/bus", "", "/none"))
    for publish, subscribe, service in (
        (bus, silent, "modelV2"),
        (none, bus, "deviceState"),
        (bus, none, "modelV2"),
    ):
        text = f"publish_address = '{publish}'\nsubscribe_address = '{subscribe}'\n"
        (tmp_path / "config.toml").write_text(text, encoding="utf-8")
        fields = {"started": True} if service == "deviceState" else {}
        with repeating(bus, (service, event_of(service, **fields))):
            said = models(4, "rollback").err
        assert re.search(f"{bus}.*: expected a parked car, but .*{service}", said)


@needs_root
def test_who_may_not_listen_cannot_tell(open_directory: Path) -> None:
    driving = event_of("deviceState", started=True)
    script = """
transport = ZmqTransport("ipc://" + arguments[0])
print("ready", flush=True)
sys.stdin.readline()
print(why_not_parked(transport, 0.1), flush=True)
"""
    with process_of(
        script,
        open_directory,
        user=STRANGER,
        group=OWN_GROUP,
        imports="from tools.service.running_models import why_not_parked",
    ) as child:
        assert line(child) == "ready"
        with repeating(f"ipc://{open_directory}", ("deviceState", driving)):
            tell(child)
            said = [line(child), line(child)]
    assert "unknown, because deviceState cannot be received" in said[1]


def test_a_bus_that_nobody_made_is_that_of_a_parked_car(tmp_path: Path, models: Models) -> None:
    (tmp_path / "bus").rmdir()
    (tmp_path / "store").mkdir()
    expected = "expected a previously selected model for driving"
    assert expected in models(4, "rollback").err
