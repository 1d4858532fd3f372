import json
from pathlib import Path

import pytest

from runtime.errors import RuntimeFault
from runtime.profile import Span, summarize
from runtime.trace import trace_events, write_trace

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


def test_trace_is_in_microseconds_since_the_first_enqueue(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(path, SPANS, "a device")
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace == trace_events(SPANS, "a device")
    name, *events = trace["traceEvents"]
    assert name["args"] == {"name": "a device"}
    assert [(e["name"], e["ts"], e["dur"]) for e in events] == [
        ("a", 2.0, 2.0),
        ("b", 4.0, 4.0),
        ("a", 11.0, 6.0),
        ("b", 17.0, 2.0),
    ]
    assert events[3]["args"] == {"iteration": 1, "launch": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"trace\.json: cannot write: No such file"):
        write_trace(tmp_path / "missing" / "trace.json", SPANS, "a device")
