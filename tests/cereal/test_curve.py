"""Keys of the bus between machines: who may listen, what is refused, and what is said."""

import logging
import os
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copy

import pytest

from cereal.errors import TransportError
from cereal.stacks import BusAddress
from cereal.transport import ZmqTransport
from cereal.transport.curve import CurveKeys, make_keys
from tests.cereal.shared import free_address
from tests.cereal.test_transport import connect

SERVICE = "modelV2"
# Loopback, spelled so that nobody takes it for that: keys are used.
ELSEWHERE = "127.1"


@pytest.fixture
def machines(tmp_path: Path) -> dict[str, Path]:
    """Directories of keys: the car lets the desk listen, and the stranger knows the car's key."""
    places = {name: tmp_path / name for name in ("car", "desk", "stranger")}
    assert all(make_keys(place) for place in places.values())
    copy(places["desk"] / "own.key", places["car"] / "peers" / "desk.key")
    for name in ("desk", "stranger"):
        copy(places["car"] / "own.key", places[name] / "server.key")
    return places


@pytest.fixture
def address() -> str:
    return free_address(SERVICE).replace("127.0.0.1", ELSEWHERE)


def test_only_who_is_known_hears(
    machines: dict[str, Path], address: str, caplog: pytest.LogCaptureFixture
) -> None:
    car = ZmqTransport(address.replace(ELSEWHERE, "*"), keys=CurveKeys.read(machines["car"]))
    others = {
        "stranger": ZmqTransport(address, keys=CurveKeys.read(machines["stranger"])),
        "without keys": ZmqTransport(address),
        "desk": ZmqTransport(address, keys=CurveKeys.read(machines["desk"])),
        # Every interface means this machine: no other key than its own is needed.
        "car itself": ZmqTransport(
            address.replace(ELSEWHERE, "*"), keys=CurveKeys.read(machines["car"])
        ),
    }
    hears = {name: transport.subscriber(SERVICE) for name, transport in others.items()}
    publisher = car.publisher(SERVICE)
    connect(publisher, hears["desk"], hears["car itself"])
    sent = [bytes([i]) * 1000 for i in range(50)]
    for data in sent:
        publisher.send(data)
    for name in ("desk", "car itself"):
        assert [hears[name].receive(10_000) for _ in sent] == sent
    for name in ("stranger", "without keys"):
        assert hears[name].receive(100) is None
    for transport in (car, *others.values()):
        transport.close()
    stranger = CurveKeys.read(machines["stranger"]).public.decode()
    denied = [
        one.getMessage() for one in caplog.records if "tried to subscribe" in one.getMessage()
    ]
    assert len(denied) == 1
    assert stranger in denied[0]


def test_loopback_and_socket_files_need_no_keys(machines: dict[str, Path], tmp_path: Path) -> None:
    for address in (free_address(SERVICE), f"ipc://{tmp_path}"):
        with (
            closing(ZmqTransport(address, keys=CurveKeys.read(machines["car"]))) as car,
            closing(ZmqTransport(address)) as other,
        ):
            connect(car.publisher(SERVICE), other.subscriber(SERVICE))


def test_machine_whose_key_is_not_known_is_not_listened_to(
    machines: dict[str, Path], address: str
) -> None:
    with (
        closing(ZmqTransport(address, keys=CurveKeys.read(machines["car"]))) as transport,
        pytest.raises(TransportError, match=r"expected .*/server\.key, found none; copy own\.key"),
    ):
        transport.subscriber(SERVICE)


@pytest.mark.parametrize(
    ("address", "leaves"),
    [
        ("tcp://127.0.0.1", False), ("tcp://127.3.0.1:+5", False), ("tcp://localhost", False),
        ("tcp://[::1]", False), ("ipc:///run/bus", False), ("msgq:", False), ("tcp://*", True),
        ("tcp://0.0.0.0", True), ("tcp://192.168.0.10", True), ("tcp://comma", True),
        ("tcp://[fe80::1]", True), ("tcp://eth0", True),
    ],
)  # fmt: skip
def test_address_without_keys_is_said_once(
    address: str, leaves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert BusAddress.parse(address).leaves_machine is leaves
    if not address.startswith("msgq"):
        elsewhere = dict.fromkeys(("modelV2", "carState"), address)
        ZmqTransport(address, elsewhere=elsewhere).close()
    said = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(said) == leaves
    assert all(f"anyone who can reach {address} can read" in one.getMessage() for one in said)


def test_making_keys_again_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "new" / "keys"
    old_mask = os.umask(0)
    try:
        assert make_keys(place)
    finally:
        os.umask(old_mask)
    assert sorted(path.name for path in place.iterdir()) == ["own.key", "own.key_secret", "peers"]
    assert stat.S_IMODE((place / "own.key_secret").stat().st_mode) == 0o600
    before = {path.name: path.read_bytes() for path in place.glob("own*")}
    assert not make_keys(place)
    assert before == {path.name: path.read_bytes() for path in place.glob("own*")}
    # What others get follows from the secret.
    public = CurveKeys.read(place).public
    (place / "own.key").unlink()
    assert not make_keys(place)
    copy(place / "own.key", place / "server.key")
    assert CurveKeys.read(place).server == public
    make_keys(tmp_path / "other")
    copy(tmp_path / "other" / "own.key", place / "own.key")
    with pytest.raises(TransportError, match="found another; remove it"):
        make_keys(place)


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda place: (place / name).write_bytes(content)


def _lose(place: Path) -> None:
    (place / "own.key_secret").write_bytes((place / "own.key").read_bytes())


def _swap(place: Path) -> None:
    path = place / "own.key_secret"
    lines = path.read_text().replace("public-key", "x").replace("secret-key", "public-key")
    path.write_text(lines.replace("x =", "secret-key ="))


SHORT = b'curve\n    public-key = "abcde"\n'
ALIEN = b'curve\n    public-key = "' + b"\xff" * 40 + b'"\n'
HUGE = b'curve\n    public-key = "' + b"#" * 40 + b'"\n'


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda place: (place / "own.key_secret").chmod(0o640), "only its owner can access .*0040"),
        (lambda place: (place / "own.key_secret").unlink(), "expected .*key_secret, found none"),
        (lambda place: (place / "peers").rmdir(), "expected the directory .*/peers, found none"),
        (lambda place: (place / "peers" / "a.key").mkdir(), "expected a key .* in .*/a.key"),
        (lambda place: os.mkfifo(place / "peers" / "a.key"), "expected a key .* in .*/a.key"),
        (_lose, "expected a matching secret and public key"),
        (_swap, "expected a matching secret and public key"),
        *(
            (_write(name, content), f"expected a key in ZeroMQ's format in .*/{name}")
            for name in ("own.key_secret", "peers/a.key", "server.key")
            for content in (b"", bytes(range(256)) * 16, SHORT, ALIEN, HUGE, bytes(1 << 17))
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(
    damage: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make_keys(tmp_path)
    damage(tmp_path)
    with pytest.raises(TransportError, match=said) as caught:
        CurveKeys.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_secret_is_not_shown(tmp_path: Path) -> None:
    make_keys(tmp_path)
    keys = CurveKeys.read(tmp_path)
    assert keys.secret.decode() not in repr(keys)
    assert len(keys.secret) == 40
