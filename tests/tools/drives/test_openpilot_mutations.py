from pathlib import Path

import pytest

from tests.tools.drives.mutate_segments import Mutator, play

# `python -m tests.tools.drives.mutate_segments` plays 10 000.
COUNT = 120


@pytest.fixture(scope="module")
def mutator(tmp_path_factory: pytest.TempPathFactory) -> Mutator:
    return Mutator(tmp_path_factory.mktemp("mutations"))


def test_damaged_drives_play_or_fail_in_one_line(mutator: Mutator) -> None:
    outcomes = set()
    for seed in range(COUNT):
        root, kind = mutator.write(seed)
        outcomes.add(play(root, kind, seed))
    assert {"played", "DriveError at once", "DriveError after frames"} <= outcomes


def test_the_same_seed_does_the_same_damage(tmp_path: Path) -> None:
    written = []
    for name in "ab":
        root, _ = Mutator(tmp_path / name).write(11)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        written.append([(path.relative_to(root), path.read_bytes()) for path in files])
    assert written[0] == written[1]
