"""Parts of `modeld doctor`: sensors and drivers of a made-up system, scrubbing, and failures."""

import os
import socket
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import pytest

from cereal.frame_ring import MAGIC
from tools.checkup import machine, opencl, surroundings
from tools.checkup.findings import Finding, Scrubber, Section, Verdict, report_plain, report_text
from tools.checkup.machine import Clock, Driver, read_sensors
from tools.checkup.parts import run_in_process

KGSL = "sys/class/kgsl/kgsl-3d0"
ROGUE = "tests.tools.checkup.rogue"


def system(root: Path, files: Mapping[str, str]) -> Path:
    """Make files of /sys and /proc."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_clocks_and_temperatures_of_a_phone_are_read(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        {
            f"{KGSL}/gpuclk": "257000000\n",
            f"{KGSL}/max_gpuclk": "710000000\n",
            f"{KGSL}/devfreq/governor": "msm-adreno-tz\n",
            f"{KGSL}/temp": "48000\n",
            "sys/class/devfreq/soc:qcom,cpubw/cur_freq": "1525000000",
            "sys/class/devfreq/5000000.qcom,kgsl-3d0/cur_freq": "257000000",
            "sys/class/devfreq/3d00000.gpu/cur_freq": "180000000",
            "sys/class/devfreq/3d00000.gpu/max_freq": "900000000",
            "sys/class/thermal/thermal_zone0/type": "cpu0-silver",
            "sys/class/thermal/thermal_zone0/temp": "91500",
            "sys/class/thermal/thermal_zone1/temp": "broken",
            "sys/class/thermal/thermal_zone2/temp": "",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "300000",
            "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "1766400",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave",
        },
    )
    found = read_sensors(root)
    assert found.gpu == [
        Clock("kgsl-3d0", 257.0, 710.0, "msm-adreno-tz"),
        Clock("3d00000.gpu", 180.0, 900.0),
    ]
    assert found.other == [
        Clock("soc:qcom,cpubw", 1525.0, 0.0),
        Clock("cpu policy0", 300.0, 1766.4, "powersave"),
    ]
    assert found.celsius == {"kgsl-3d0": 48.0, "cpu0-silver": 91.5}
    section = machine.clocks(root)
    texts = [f.text for f in section.findings if f.verdict is Verdict.LOOK]
    assert texts == ["cpu0-silver is at 92 °C", "governor powersave: cpu policy0"]
    assert "257 of 710 MHz" in report_text([section])


def test_a_system_without_sensors_is_no_problem(tmp_path: Path) -> None:
    assert machine.clocks(tmp_path).verdict is Verdict.GOOD


def test_a_driver_that_no_file_names_is_found_and_named(tmp_path: Path) -> None:
    vendors = system(tmp_path, {"v/one.icd": "libone.so.1\n", "v/no.txt": "libc.so.6"}) / "v"
    here = Driver("Here", ("libnothing.so.9", "libc.so.6"), ())
    known = Driver("Known", ("libone.so.1", "libc.so.6"), ())
    absent = Driver("Absent", ("libnothing.so.9",), ())
    drivers = (here, known, absent)
    assert opencl.undeclared_drivers(vendors, drivers) == [(here, "libc.so.6")]
    own = tmp_path / "own"
    assert opencl.write_vendors(own, vendors, drivers) == ["Here"]
    assert opencl.declared_libraries(own) == {"one.icd": "libone.so.1", "here.icd": "libc.so.6"}
    assert opencl.undeclared_drivers(own, drivers) == []
    assert opencl.write_vendors(tmp_path / "none", tmp_path / "missing", (absent,)) == []


def test_a_node_that_is_closed_to_the_user_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, {"dev/kgsl-3d0": "", "dev/dri/renderD128": ""})
    access = os.access
    closed = tmp_path / "dev/kgsl-3d0"
    monkeypatch.setattr(os, "access", lambda p, mode: p != closed and access(p, mode))
    section = machine.permissions(tmp_path)
    (bad,) = (f for f in section.findings if f.verdict is Verdict.BAD)
    assert bad.text.startswith("/dev/kgsl-3d0 cannot be opened")
    assert "usermod" in bad.advice
    assert section.facts["nodes"] == ["/dev/kgsl-3d0", "/dev/dri/renderD128"]


def test_daemons_are_seen_by_their_command(tmp_path: Path) -> None:
    lines = {
        "7": "/v/bin/python\0/v/bin/modeld\0run\0--config\0x\0",
        "8": "/v/bin/python\0-m\0modeld.process\0",
        "9": "/v/bin/python\0/v/bin/modeld\0doctor\0",
        "10": "vi\0modeld\0",
        "11": "",
    }
    root = system(tmp_path, {f"{number}/cmdline": text for number, text in lines.items()})
    assert sorted(surroundings.daemon_processes(root)) == [7, 8]


@pytest.mark.slow
def test_a_bus_on_which_nobody_speaks_is_said_to_be_elsewhere(tmp_path: Path) -> None:
    root = system(tmp_path, {"proc/7/cmdline": "python\0modeld\0run\0"}) / "proc"
    names = ("publish", "subscribe", "bus_keys", "stack", "port_hash")
    options = Namespace(bus=f"ipc://{tmp_path}", sends=False, **dict.fromkeys(names))
    section = surroundings.bus(options, root)
    assert section.verdict is Verdict.LOOK
    assert section.facts == {"daemon_processes": 1, "bus": "ipc", "heard": {}}


def test_cameras_are_seen_and_not_asked(tmp_path: Path) -> None:
    (tmp_path / "camera_road").write_bytes(MAGIC.to_bytes(8, "little") + bytes(56))
    (tmp_path / "other").write_bytes(b"NV12")
    (tmp_path / "visionipc_file").write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "visionipc_camerad"))
        section = surroundings.cameras(tmp_path, tmp_path)
    assert section.facts == {"rings": ["camera_road"], "visionipc": ["visionipc_camerad"]}
    assert section.verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("crashes", "ended by SIGSEGV"),
        ("raises", "failed: RuntimeError: no such thing"),
        ("silent", "failed: no output"),
    ],
)
def test_a_part_that_fails_is_a_bad_section(part: str, text: str) -> None:
    section = run_in_process(part, {}, 20.0, ROGUE)
    assert section.verdict is Verdict.BAD
    assert section.findings[0].text.startswith(text)
    assert section.name == part


@pytest.mark.slow
def test_a_part_that_hangs_is_cut_and_its_processes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    monkeypatch.setenv("ROGUE_CHILD", str(child))
    started = time.monotonic()
    section = run_in_process("hangs", {}, 2.0, ROGUE)
    assert time.monotonic() - started < 30
    assert section.findings[0].text == "timed out after 2 s"
    pid = int(child.read_text(encoding="utf-8"))
    for _ in range(100):
        status = Path(f"/proc/{pid}/status")
        if not status.exists() or "State:\tZ" in status.read_text(encoding="utf-8"):
            break
        time.sleep(0.05)
    else:
        pytest.fail("the part's own process lives on")


ENVIRONMENT = {
    "HOME": "/home/annabel",
    "MODELD_CACHE_DIR": "/mnt/vault/cache",
    "API_TOKEN": "s3cr3t-t0ken",
    "SHORT": "1",
    "PATH": "/usr/bin:/home/annabel/bin:/mnt/vault/bin",
}
SCRUBBER = Scrubber("annabel", "/home/annabel", "roadster.example.org", ENVIRONMENT)


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("/home/annabel/m.pkl: damaged", "~/m.pkl: damaged"),
        ("/home/otto/m.pkl", "~/m.pkl"),
        ("no file /mnt/vault/cache/a", "no file $MODELD_CACHE_DIR/a"),
        ("key s3cr3t-t0ken refused", "key $API_TOKEN refused"),
        ("on roadster.example.org", "on <host>"),
        ("roadster: denied to annabel", "<host>: denied to <user>"),
        ("tcp://10.1.2.3:8002 refused", "tcp://<address>:8002 refused"),
        ("tcp://127.0.0.1 works", "tcp://127.0.0.1 works"),
        ("GPU-6b0f7ab1-1b1a-4c8e-9b3d-0123456789ab", "GPU-<id>"),
        ("eth0 02:42:ac:11:00:02", "eth0 <address>"),
        ("Serial: 2021ABC", "Serial: <id>"),
        ("driver 550.54.15 in /usr/bin, 1 device", "driver 550.54.15 in /usr/bin, 1 device"),
        ("annabelle stays", "annabelle stays"),
    ],
)
def test_private_things_are_taken_out(text: str, scrubbed: str) -> None:
    assert SCRUBBER.text(text) == scrubbed
    assert SCRUBBER.plain({text: [text, 1, None]}) == {scrubbed: [scrubbed, 1, None]}


def test_a_section_has_its_worst_verdict_and_comes_back_from_its_plain_form() -> None:
    assert Section("none").verdict is Verdict.GOOD
    section = Section("one", table=[["a", "b"], [1, 2.5]], facts={"n": 1}, seconds=1.25)
    section.good("fine")
    section.look("odd", "look at it")
    section.bad("broken", "mend it")
    assert section.verdict is Verdict.BAD
    again = Section.of_plain(section.plain())
    assert again == section
    assert again.findings[2] == Finding("broken", Verdict.BAD, "mend it")
    text = report_text([section, Section("two")])
    assert "one: bad" in text
    assert "-> mend it" in text
    assert text.endswith("1 section bad")
    assert report_plain([section])["summary"] == {"good": 0, "to look at": 0, "bad": 1}
