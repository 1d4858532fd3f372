import json
from pathlib import Path

import pytest

from runtime.errors import RuntimeFault
from runtime.format.manifest import parse_manifest
from runtime.run.profile import Span, summarize
from tests.runtime import tiny
from tools.timing.run_parts import MAX_EVENTS, PhasedRun, trace_events, traceable_runs, write_trace

SHIFT = tiny.kernel(
    "contract_0123456789ab", 1, tiny.QUEUE, tiny.X, origin=["/stem/Conv", "/stem/Relu"]
)
SUM = tiny.kernel("sum", 4, tiny.TOTAL, tiny.QUEUE)
MANIFEST = parse_manifest(
    tiny.manifest(
        data_size=len(tiny.data_blob()),
        kernels=[SHIFT, SUM],
        entries={"run": {"inputs": [tiny.X], "outputs": [], "launches": [0, 1]}},
    )
)
SPANS = [
    [Span(0, "a", 1_000, 3_000, 5_000), Span(1, "b", 1_500, 5_000, 9_000)],
    [Span(0, "a", 11_000, 12_000, 18_000), Span(1, "b", 11_500, 18_000, 20_000)],
]


def test_summarize_takes_medians_and_rates_by_hand() -> None:
    first, second = summarize(SPANS, [(("/a",), 8_000, 4_000), ((), 0, 0)])
    assert (first.launch, first.name, first.origin) == (0, "a", ("/a",))
    assert first.median_ms == pytest.approx(0.004)  # of 2 us and 6 us
    assert first.min_ms == pytest.approx(0.002)
    assert first.gflops == pytest.approx(2.0)  # 8000 operations in 4 us
    assert first.gbytes_per_s == pytest.approx(1.0)
    assert second.median_ms == pytest.approx(0.003)
    assert second.gflops == 0.0


def test_trace_says_what_ran_in_microseconds_since_the_first_enqueue(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    # The host's clock is 500 ns behind the device's, and 9 000 ns before it in the second run.
    runs = [
        PhasedRun(0, 500, 1_200, 8_700, 9_000, tuple(SPANS[0])),
        PhasedRun(19_500, 20_000, 20_600, 29_000, 29_100, tuple(SPANS[1])),
    ]
    trace = trace_events(runs, "a device", MANIFEST, "run")
    write_trace(path, trace)
    assert json.loads(path.read_text(encoding="utf-8")) == trace
    assert list(tmp_path.iterdir()) == [path]
    device, thread, host, *slices = trace["traceEvents"]
    assert device["args"] == {"name": "a device"}
    assert (thread["args"], host["args"]) == ({"name": "tiny run"}, {"name": "host"})
    assert (thread["tid"], host["tid"]) == (1, 2)
    events = [one for one in slices if one["tid"] == 1]
    # Time 0 is when the first inputs were written: 500 ns before the first launch was queued.
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in events] == [
        ("run 0", "run", 2.5, 6.0), ("/stem/{Conv,Relu}", "contract", 2.5, 2.0),
        ("/sum", "sum", 4.5, 4.0), ("run 1", "run", 11.5, 8.0),
        ("/stem/{Conv,Relu}", "contract", 11.5, 6.0), ("/sum", "sum", 17.5, 2.0),
    ]  # fmt: skip
    assert [(e["name"], e["ts"], e["dur"]) for e in slices if e["tid"] == 2] == [
        ("write inputs", 0.0, 0.5), ("queue launches", 0.5, 0.7), ("wait", 1.2, 7.5),
        ("read outputs", 8.7, 0.3), ("write inputs", 10.0, 0.5), ("queue launches", 10.5, 0.6),
        ("wait", 11.1, 8.4), ("read outputs", 19.5, 0.1),
    ]  # fmt: skip
    # Kernels of tiny: 4 operations and 16 bytes an item; 8 items in all, so 20 and 80 of a run.
    assert events[3]["args"] == {"run": 1, "launches": 2, "flops": 20, "bytes": 80}
    assert events[5]["args"] == {
        "run": 1, "launch": 1, "kernel": "sum", "nodes": ["/sum"],
        "arguments": ["intermediate float32[4] total", "state float32[3, 4] queue"], "flops": 16,
        "bytes": 64, "global_size": [4, 1, 1], "local_size": [1, 1, 1],
        "GFLOP/s": 0.008,  # 16 operations in 2000 ns
        "GB/s": 0.032,
    }  # fmt: skip


def test_a_trace_holds_as_many_runs_as_were_asked_for_up_to_a_bound() -> None:
    assert traceable_runs(launches=99, wanted=100) == 100
    assert traceable_runs(launches=99, wanted=5) == 5
    assert traceable_runs(launches=99, wanted=10**6) == MAX_EVENTS // 99
    assert traceable_runs(launches=10**6, wanted=7) == 1
    assert traceable_runs(launches=0, wanted=7) == 7


def test_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"trace\.json: cannot write: No such file"):
        write_trace(tmp_path / "missing" / "trace.json", {})
