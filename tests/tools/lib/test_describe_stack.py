"""`modeld inspect --schema DIR`: checkouts made of our own schema, and what they differ in."""

import os
import shutil
from pathlib import Path

import pytest

from cereal.schema import SCHEMA_PATH
from cereal.services import SERVICES
from tests.tools.conftest import Modeld

SERVICES_PY = '''"""A table as stacks have it."""
from enum import IntEnum
from pathlib import Path

Path("executed").touch()

class QueueSize(IntEnum):
    BIG = 10 * 1024 * 1024
    MEDIUM = 2 * 1024 * 1024
    SMALL = 250 * 1024

_services: dict[str, tuple] = {
%s
}
SERVICE_LIST = {name: print(row) for name, row in _services.items()}
'''


IMPORTS = """using Cxx = import "/include/c++.capnp";  # import "none.capnp"
$Cxx.namespace("cereal");
using Car = import "/car.capnp";"""


def rows(**changed: str) -> str:
    table = {
        name: f"({row.logged}, {row.frequency_hz!r}, {row.decimation}, {row.queue_bytes})"
        for name, row in SERVICES.items()
    }
    return "".join(f'    "{name}": {row},\n' for name, row in {**table, **changed}.items())


def checkout(root: Path, home: str = "cereal", car: str = "cereal") -> Path:
    """Write a checkout that has what we have; return its directory of schema files."""
    place = root / home
    place.mkdir(parents=True)
    for source in SCHEMA_PATH.parent.glob("*.capnp"):
        shutil.copy(source, place)
    (root / car).mkdir(parents=True, exist_ok=True)
    if car != home:
        (place / "car.capnp").rename(root / car / "car.capnp")
    (place / "services.py").write_text(SERVICES_PY % rows(thumbnail="(True, 1 / 60., 1)"))
    return place


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


def test_a_checkout_that_has_what_we_have(tmp_path: Path, modeld: Modeld) -> None:
    checkout(tmp_path)
    said = modeld(0, "inspect", "--schema", tmp_path).out
    assert said.splitlines()[1].startswith(f"0 differences from our tables in {len(SERVICES)} ")
    assert len(said.splitlines()) == 3  # no rows
    assert not Path("executed").exists()


def test_what_a_newer_checkout_has(tmp_path: Path, modeld: Modeld) -> None:
    """In the layout of 2026, with annotations and imports as there."""
    place = checkout(tmp_path, "openpilot/cereal", "opendbc_repo/opendbc/car")
    edit(
        place / "log.capnp",
        ('using Car = import "car.capnp";', IMPORTS),
        ("    roadEncodeIdx @15 :EncodeIndex;", "    narrowIdx @15 :EncodeIndex;"),
        ("    modelV2 @75 :ModelDataV2;", "    modelV2 @75 :ModelDataV2; next @155 :NextData;"),
        ("struct Event {", "struct NextData {\n  flag @0 :Bool;\n}\n\nstruct Event {"),
        ("  frameDropPerc @2 :Float32;", "  frameDropPerc @2 :UInt32;"),
    )  # fmt: skip
    edit(
        tmp_path / "opendbc_repo/opendbc/car/car.capnp",
        ("    mg @38;", "    moreCars @38;\n    cars @39;"),
        ("    curvature @2;\n", ""),
    )
    changed = {"chestnutState": "(True, 2., 1)", "nextData": "(False, 3., None, QueueSize.MEDIUM)"}
    (place / "services.py").write_text(SERVICES_PY % rows(**changed))
    found = modeld(1, "inspect", "--schema", tmp_path, "--json").json
    said = {tuple(one.values()) for one in found["findings"]}
    queue = "queue 256000"
    assert said == {
        ("new", "Event.next", "", "@155 :NextData"),
        ("new", "CarParams.SafetyModel.cars", "", "@39"),
        ("new", "nextData", "", "3 Hz, not logged, not in qlog, queue 2097152"),
        ("changed", "chestnutState",
         f"10 Hz, logged, qlog 10, {queue}", f"2 Hz, logged, qlog 1, {queue}"),
        ("incompatible", "ModelDataV2.frameDropPerc", "float32, place 2", "uint32, place 2"),
        ("removed", "CarParams.SteerControlType.curvature", "@2", ""),
        ("renamed", "CarParams.SafetyModel @38", "mg", "moreCars"),
        ("renamed", "Event.roadEncodeIdx", "roadEncodeIdx", "narrowIdx"),
    }  # fmt: skip
    assert (found["kind"], found["differences"]) == ("schema", 5)
    assert found["structures"] > 100


ERRORS = [
    ("services.py", "_services = {'a': (True, f())}", "services.py: expected a table of services"),
    (
        "services.py",
        "_services = {'a': (True, 1 / 0)}",
        "services.py: expected a table of services",
    ),
    ("services.py", "_services = {'a': (True, Queue.BIG)}", "services.py: expected a table of"),
    ("services.py", "_services = " + "(" * 5000, "services.py: expected a table of services"),
    ("services.py", "other = {}", "expected a dictionary _services or services, found none"),
    ("services.py", "#" * (1 << 20) + "#", "expected at most 1048576 bytes, found more"),
    ("log.capnp", "@0xf; struct", "log.capnp: expected a schema, found log.capnp:0: failed"),
    ("log.capnp", "@0xdeadbeefdeadbeef; struct A {}", "expected a structure Event, found none"),
    (
        "log.capnp",
        'using A = import "/etc/none.capnp";',
        "log.capnp: expected none.capnp, which it",
    ),
    ("log.capnp", 'const a :Data = embed "/etc/hostname";', "found an embedded file"),
    ("log.capnp", "\xff", "log.capnp: expected a schema, found"),
]


@pytest.mark.parametrize(("name", "content", "reason"), ERRORS)
def test_other_checkouts_are_refused_in_a_line(
    tmp_path: Path, modeld: Modeld, name: str, content: str, reason: str
) -> None:
    (tmp_path / "log.capnp").write_text("@0xdeadbeefdeadbeef; struct Event { a @0 :Bool; }")
    (tmp_path / "services.py").write_text("services = {}")
    (tmp_path / name).write_text(content)
    said = modeld(4, "inspect", "--schema", tmp_path).err
    assert reason in said
    assert said.count("\n") == 1


def test_a_directory_that_is_no_checkout(tmp_path: Path, modeld: Modeld) -> None:
    said = modeld(4, "inspect", "--schema", tmp_path).err
    assert "expected log.capnp and services.py in it, in cereal or in openpilot/cereal" in said
    (tmp_path / "services.py").touch()
    os.mkfifo(tmp_path / "log.capnp")  # nobody waits for it
    modeld(4, "inspect", "--schema", tmp_path)
