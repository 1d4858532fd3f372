"""Logs with random damage; `make test-logs` reads ten thousand of them."""

from pathlib import Path

from tests.logs import mutate

MUTATIONS = 250


def test_damaged_logs_give_only_documented_errors_in_bounded_memory(tmp_path: Path) -> None:
    found = mutate.run(MUTATIONS, 0, tmp_path)
    # Each of these can happen and does: the test would be empty without.
    assert min(found[key] for key in ("events", "warned", "refused", "damaged events")) > 0
    assert found["grown_mib"] < 256
