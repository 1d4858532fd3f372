"""Metrics: what a reader finds in their file, where it cannot be written, figures and sensors."""

import os
import re
import resource
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from modeld.health.metrics import MetricsFile, metrics_text
from modeld.health.snapshot import (
    MOST_TEMPERATURES,
    Earlier,
    FigureReader,
    Figures,
    HealthSnapshot,
    SelfTestFacts,
    ServiceFacts,
    Temperature,
    TestResult,
    find_sensors,
    read_temperatures,
    take_snapshot,
)
from modeld.service.realtime import Effect
from modeld.state.loop_state import BOUNDS_MS, NS_PER_MS, Fault, LoopState, Phase
from tests.cereal.shared import largest_file
from tests.modeld.bench import Log, eventually
from tests.modeld.test_health import Line

NS_PER_S = 1_000_000_000
SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z0-9_]+="(?:[^"\\]|\\["n\\])*",?)*)\} (\S+)')
LABEL = re.compile(r'([a-z0-9_]+)="((?:[^"\\]|\\["n\\])*)"')
Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> tuple[Found, dict[str, str]]:
    """Read the text format by its description alone; return samples and types."""
    samples: Found = {}
    types: dict[str, str] = {}
    helped: set[str] = set()
    family = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, family, meaning = line.split(" ", 3)
            assert meaning
            assert family not in helped, "a family stands in one place"
            helped.add(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match.groups()
            own = name
            if types[family] == "histogram":
                own = re.sub("_(bucket|sum|count)$", "", name)
            assert own == family, f"{name} stands among {family}"
            unescaped = {
                key: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text)
                for key, text in LABEL.findall(labels)
            }
            key = (name, frozenset(unescaped.items()))
            assert key not in samples, f"{line} is there twice"
            samples[key] = float(value)
    return samples, types


def value(samples: Found, name: str, **labels: str) -> float:
    return samples[f"modeld_{name}", frozenset({"daemon": "driving", **labels}.items())]


def snapshot(state: LoopState | None = None, facts: ServiceFacts | None = None) -> HealthSnapshot:
    return take_snapshot(
        facts or ServiceFacts("driving"),
        state or LoopState(),
        20 * NS_PER_S,
        Earlier(10 * NS_PER_S),
        {},
        (Figures(1 << 20, 2 << 20, 7, 30, 4.5, 3), (Temperature("cpu", 54.5),)),
    )


def test_counters_gauges_and_their_types() -> None:
    state = LoopState(phase=Phase.RUNNING, model="m.pkl", frames=10, published=9, valid=8)
    state.dropped, state.frame_id, state.warm_up_left = 3, 4711, 12
    state.published_ns, state.reasons = 19_500_000_000, ("no calibration",)
    state.count(Fault.NO_FRAME, 5)
    facts = ServiceFacts(
        "driving",
        sha256="abc",
        program_sha256="def",
        device="a device",
        driver="a driver",
        self_test=SelfTestFacts(TestResult.PASSED, 12.5),
        realtime=(Effect("cpus", "7", effective=True), Effect("priority", "5", effective=False)),
        versions={"modeld": "1.2", "python": "3"},
        started_ns=5 * NS_PER_S,
    )
    samples, types = parse(metrics_text(snapshot(state, facts), 1.8e9))
    labels = {"version": "1.2", "model": "m.pkl", "sha256": "abc", "program_sha256": "def"}
    for name, expected, more in (
        ("info", 1, {**labels, "device": "a device", "driver": "a driver"}),
        ("phase", 1, {"phase": "running"}),
        ("phase", 0, {"phase": "starting"}),
        ("written_timestamp_seconds", 1.8e9, {}),
        ("uptime_seconds", 15, {}),
        ("fallback", 0, {}),
        ("self_test_passed", 1, {}),
        ("self_test_seconds", 0.0125, {}),
        ("frames_total", 10, {}),
        ("frames_published_total", 9, {}),
        ("frames_valid_total", 8, {}),
        ("frames_dropped_total", 3, {}),
        ("frame_id", 4711, {}),
        ("publication_age_seconds", 0.5, {}),
        ("invalid_reasons", 1, {}),
        ("warm_up_runs_left", 12, {}),
        ("faults_total", 5, {"kind": "noFrame"}),
        ("faults_total", 0, {"kind": "deviceError"}),
        ("realtime_effective", 1, {"setting": "cpus"}),
        ("realtime_effective", 0, {"setting": "priority"}),
        ("memory_bytes", 1 << 20, {}),
        ("cpu_seconds_total", 4.5, {}),
        ("temperature_celsius", 54.5, {"sensor": "cpu"}),
    ):
        assert value(samples, name, **more) == expected, name
    page = Path(__file__).parents[2] / "docs/formats/health.md"
    rows = re.findall(r"^\| (`modeld_.*?) \|([^|]*)\|", page.read_text("utf-8"), re.MULTILINE)
    documented = {n: kind.strip() for names, kind in rows for n in re.findall(r"`(\w+)`", names)}
    assert types == documented
    for name, kind in types.items():
        assert (kind == "counter") is name.endswith("_total"), name
    assert types["modeld_stage_seconds"] == "histogram"


def test_stages_are_cumulative_histograms_in_seconds() -> None:
    state = LoopState()
    for milliseconds in (0.25, 20.0, 20.5, 5000.0):
        state.stages.begin(0)
        state.stages.mark("model", int(milliseconds * NS_PER_MS))
    samples, _ = parse(metrics_text(snapshot(state), 0.0))
    buckets = {
        dict(labels)["le"]: count
        for (name, labels), count in samples.items()
        if name == "modeld_stage_seconds_bucket" and ("stage", "model") in labels
    }
    assert len(buckets) == len(BOUNDS_MS) + 1
    assert [float(bound) for bound in buckets][:-1] == [bound / 1000 for bound in BOUNDS_MS]
    assert (buckets["0.00025"], buckets["0.015"], buckets["0.02"]) == (1, 1, 2)
    assert (buckets["0.025"], buckets["1"], buckets["+Inf"]) == (3, 3, 4)
    assert value(samples, "stage_seconds_sum", stage="model") == pytest.approx(5.04075)
    assert value(samples, "stage_seconds_count", stage="model") == 4
    assert value(samples, "stage_seconds_count", stage="wait") == 0


def test_labels_hold_any_text_and_what_is_not_known_is_left_out() -> None:
    name = 'C:\\models\\"big"\nü'
    samples, _ = parse(metrics_text(snapshot(LoopState(model=name)), 0.0))
    [info] = [dict(labels) for name, labels in samples if name == "modeld_info"]
    assert info["model"] == name
    names = {name for name, _ in samples}
    assert not names & {"modeld_publication_age_seconds", "modeld_self_test_passed"}


def test_of_sensors_of_one_name_the_hottest_counts() -> None:
    both = (Temperature("nvme", 40.0), Temperature("nvme", 50.0), Temperature("nvme", 45.0))
    samples, _ = parse(metrics_text(replace(snapshot(), temperatures=both), 0.0))
    assert value(samples, "temperature_celsius", sensor="nvme") == 50


@pytest.fixture
def file(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "metrics/modeld.prom")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "metrics").mkdir()
    return tmp_path / "metrics/modeld.prom"


def names(path: Path) -> list[str]:
    return [one.name for one in path.parent.iterdir()]


def test_the_file_is_replaced_whole_and_readable_for_all(file: MetricsFile, path: Path) -> None:
    before = os.umask(0o077)
    try:
        file.write(snapshot())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    # Of a daemon that stopped the file stays, and says since when.
    samples, _ = parse(path.read_text(encoding="utf-8"))
    assert abs(value(samples, "written_timestamp_seconds") - path.stat().st_mtime) < 1
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            file.write(snapshot())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            assert "modeld_stage_seconds_count" in path.read_text(encoding="utf-8").splitlines()[-1]
    finally:
        stop.set()
        thread.join()
    assert names(path) == ["modeld.prom"]
    assert file.failures == 0


def test_a_missing_directory_is_said_once_and_counted(
    file: MetricsFile, path: Path, caplog: Log
) -> None:
    path.parent.rmdir()
    for _ in range(3):
        file.write(snapshot())
    path.parent.mkdir()
    file.write(snapshot())
    file.write(snapshot())
    path.unlink()
    path.parent.rmdir()
    file.write(snapshot())
    assert file.failures == 4
    failed = "metrics cannot be written: No such file or directory; retrying every second"
    said = [text.split(": ", 1)[1] for text in caplog.messages]
    assert said == [failed, "metrics are written again (3 lost)", failed]


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(
    file: MetricsFile, path: Path
) -> None:
    file.write(snapshot())
    old = path.read_bytes()
    with largest_file(1000):
        file.write(snapshot(LoopState(frames=5)))
    assert (file.failures, path.read_bytes()) == (1, old)
    assert names(path) == ["modeld.prom"]
    file.write(snapshot(LoopState(frames=5)))
    assert path.read_bytes() != old


def test_a_disk_that_hangs_stops_no_report(file: MetricsFile, path: Path, caplog: Log) -> None:
    """A named pipe that nobody reads stands for the disk: opening it waits for ever."""
    pipe = path.with_name(".modeld.prom.part")
    os.mkfifo(pipe)
    reporter = Line(ServiceFacts("driving"), metrics=file).reporter
    lost: list[int] = []

    def report() -> bool:
        found = reporter.report(NS_PER_S * len(lost))
        lost.append(next(one.count for one in found.faults if one.name == "metricsLost"))
        return lost[-1] >= 3

    eventually(report)
    assert sum("is still being written" in text for text in caplog.messages) == 1
    # Whoever reads the pipe lets the thread go on.
    pipe.read_bytes()
    eventually(lambda: not pipe.exists())
    reporter.report(0)
    reporter.close()
    samples, _ = parse(path.read_text(encoding="utf-8"))
    assert value(samples, "faults_total", kind="metricsLost") >= 3


def test_the_last_report_is_in_the_file_when_it_is_closed(path: Path) -> None:
    for frames in range(20):
        line = Line(ServiceFacts("driving"), metrics=MetricsFile(path))
        line.state.frames = frames
        line.reporter.report(NS_PER_S)
        line.reporter.close()
        samples, _ = parse(path.read_text(encoding="utf-8"))
        assert value(samples, "frames_total") == frames


# --- the process and the sensors of the machine, as the kernel shows them ---------------------


def test_an_open_file_and_a_thread_are_counted() -> None:
    reader = FigureReader()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    before = reader.read()
    thread.start()
    with Path(os.devnull).open(encoding="utf-8"):
        during = reader.read()
    stop.set()
    thread.join()
    reader.close()
    assert (during.open_files, during.threads) == (before.open_files + 1, before.threads + 1)


def test_figures_are_read_without_a_free_descriptor() -> None:
    reader = FigureReader()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    found = Figures()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            found = reader.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in held:
            os.close(number)
        reader.close()
    assert found.memory_bytes > 1 << 20
    assert found.threads >= 1


def folder_of(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text + "\n", encoding="ascii")
    return folder


def zone(root: Path, number: int, kind: str, text: str) -> Path:
    return folder_of(root / f"thermal/thermal_zone{number}", type=kind, temp=text)


def test_zones_and_monitors_are_read_once(tmp_path: Path) -> None:
    acpi = zone(tmp_path, 0, "acpitz", "27800")
    zone(tmp_path, 10, "gpu", "-274000")  # a sensor that is off
    zone(tmp_path, 2, "cpu0", "54321")
    core = {"temp1_input": "61000", "temp1_label": "Package id 0", "temp10_input": "60000"}
    core = {**core, "name": "coretemp", "temp2_input": "no number"}
    (folder_of(tmp_path / "hwmon/hwmon1", **core) / "device").symlink_to(tmp_path)
    # The kernel shows the zone once more.
    again = folder_of(tmp_path / "hwmon/hwmon0", name="acpitz", temp1_input="27800")
    (again / "device").symlink_to(acpi)
    assert read_temperatures(find_sensors(tmp_path)) == (
        Temperature("acpitz", 27.8),
        Temperature("cpu0", 54.321),
        Temperature("coretemp Package id 0", 61.0),
        Temperature("coretemp temp10", 60.0),
    )


def test_a_sensor_that_goes_away_is_left_out(tmp_path: Path) -> None:
    folder = zone(tmp_path, 0, "battery", "30000")
    sensors = find_sensors(tmp_path)
    (folder / "temp").unlink()
    assert len(sensors) == 1
    assert read_temperatures(sensors) == ()
    assert find_sensors(tmp_path / "nothing") == ()


def test_of_many_sensors_the_hottest_are_told(tmp_path: Path) -> None:
    for number in range(90):
        zone(tmp_path, number, f"zone-{number}", str(1000 * (20 + number * 7 % 90)))
    found = read_temperatures(find_sensors(tmp_path))
    assert len(found) == MOST_TEMPERATURES
    assert {one.degrees_c for one in found} == {float(20 + n) for n in range(74, 90)}
    numbers = [int(one.name.removeprefix("zone-")) for one in found]
    assert numbers == sorted(numbers)


def test_sensors_of_one_name_and_temperature_stay_within_the_limit(tmp_path: Path) -> None:
    for number in range(2 * MOST_TEMPERATURES):
        zone(tmp_path, number, "soc", "50000")
    assert len(read_temperatures(find_sensors(tmp_path))) == MOST_TEMPERATURES
