"""`modeld doctor` from the command line: what it shows, writes, leaves out and ends with."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conftest import Modeld
from tools import cli
from tools.checkup.findings import Section
from tools.checkup.parts import LIMITS, ON_DEVICE
from tools.commands import doctor

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Answer instead of the processes; returns what each part was asked."""
    seen: dict[str, dict[str, Any]] = {}

    def answer(name: str, request: dict[str, Any], limit_s: float) -> Section:
        seen[name] = {**request, "limit": limit_s}
        section = Section(name)
        section.good("fine")
        if name == "artifact":
            section.facts["path"] = "/somewhere/example.pkl"
        if name == "bus" and request["bus"]["bus"] == "msgq:":
            section.facts["daemon_processes"] = 1
        if name == "cameras" and request["device"] == "broken":
            section.bad("broken", "mend it")
        return section

    monkeypatch.setattr(doctor, "run_in_process", answer)
    return seen


def test_every_part_runs_within_its_limit_and_the_last_ones_get_the_artifact(
    asked: dict[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.pkl").write_bytes(b"\x80\x05")
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["name"] for s in found["sections"]] == list(asked) == list(LIMITS)
    assert {name: one["limit"] for name, one in asked.items()} == LIMITS
    assert asked["kernels"]["path"] == asked["self-test"]["path"] == "/somewhere/example.pkl"
    assert "path" not in found["sections"][list(LIMITS).index("artifact")]["facts"]
    assert cli.main(["doctor", "--limit", "3", "x.pkl"]) == 0
    assert {one["limit"] for one in asked.values()} == {3.0}
    assert asked["artifact"]["path"] == str(Path("x.pkl").absolute())


def test_a_bad_section_is_the_exit_code(
    asked: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--device", "broken"]) == 1
    assert "1 section bad" in capsys.readouterr().out
    assert asked["kernels"]["device"] == "broken"


def test_beside_a_daemon_the_device_is_left_alone(asked: dict[str, dict[str, Any]]) -> None:
    assert cli.main(["doctor", "--bus", "msgq:"]) == 0
    assert asked.keys().isdisjoint(ON_DEVICE)
    assert cli.main(["doctor", "--bus", "msgq:", "--beside-daemon"]) == 0
    assert asked.keys() >= set(ON_DEVICE)


@pytest.mark.usefixtures("asked")
def test_the_report_is_written_as_its_name_says(tmp_path: Path) -> None:
    for name in ("r.txt", "r.json"):
        assert cli.main(["-q", "doctor", "--output", str(tmp_path / name)]) == 0
    assert "all is well" in (tmp_path / "r.txt").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["summary"]["bad"] == 0
    for wrong in (["--output", str(tmp_path / "r.html")], ["--limit", "0"], ["--limit", "nan"]):
        assert cli.main(["doctor", *wrong]) == 2


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_a_report_of_this_machine_has_nothing_private(tmp_path: Path, modeld: Modeld) -> None:
    """The whole of it, with names and paths that would be seen if one of them came through."""
    del modeld
    home = tmp_path / "home" / "annabel"
    home.mkdir(parents=True)
    artifact = home / "secret-place.pkl"
    artifact.write_bytes(b"\x80\x05 no artifact")
    environment = {
        **os.environ,
        "HOME": str(home),
        "USER": "annabel",
        "LOGNAME": "annabel",
        "API_TOKEN": "s3cr3t-t0ken",
        "PYTHONPATH": str(ROOT),
    }
    report = home / "report.json"
    words = [str(artifact), "--output", str(report), "--store", str(home / "models")]
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", "doctor", "--json", *words],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    verdicts = {s["name"]: s["verdict"] for s in found["sections"]}
    assert verdicts["devices"] != "bad"
    assert verdicts["self-test"] == verdicts["kernels"] == "bad"
    for text in (done.stdout, report.read_text(encoding="utf-8")):
        for private in ("annabel", "s3cr3t", str(tmp_path), os.uname().nodename):
            assert private not in text, private


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_a_small_example_is_made_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--json", "--limit", "200"])
    sections = {s["name"]: s for s in json.loads(capsys.readouterr().out)["sections"]}
    assert "example" in sections["artifact"]["findings"][0]["text"]
    assert sections["self-test"]["facts"]["runs"] == 3
    assert sections["self-test"]["verdict"] == "good"
    head, *rows = sections["kernels"]["table"]
    assert head[2:4] == ["ms", "expected ms"]
    assert 0 < len(rows) <= 10
    times = [row[2] for row in rows]
    assert times == sorted(times, reverse=True)
    assert code in (0, 1)  # other sections are of this machine
