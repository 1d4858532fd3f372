"""The checker of prose finds planted phrasings, and leaves code and plain sentences alone."""

from pathlib import Path

import pytest

from docs.prose import ROOT, findings, main, read_table

TABLE = read_table(ROOT / "docs/prose.tsv")


def found(text: str) -> list[str]:
    return list(findings(text, TABLE))


@pytest.mark.parametrize(
    ("text", "line", "phrase"),
    [
        ("The speed is told\nin miles.", 1, "is told"),
        ("Changes belong\ninto the unit.", 1, "belong into"),
        ("# Title\n\nFine. What is damaged is\nleft out.", 3, "What is damaged"),
        ("```\nis told\n```\n\nIt runs\n  beside it.", 6, "beside it"),
        ("Read `a b` anew.", 1, "anew"),
        ("A digest is no signature.", 1, "is no signature"),
    ],
)
def test_a_planted_phrasing_is_found_on_its_line(text: str, line: int, phrase: str) -> None:
    (finding,) = found(text)
    assert finding.startswith(f"{line}: '{phrase}' -> '")


@pytest.mark.parametrize(
    "text",
    [
        "There is no model here. It depends on what is asked.",
        "Names: `is told`, [new](anew.md), `x` anewish.",
        "```sh\necho anew\n```",
        "A block:\n\n    $ modeld run\n    the speed is told\n\nEnd.",
        "<!-- is told -->",
    ],
)
def test_code_and_plain_sentences_are_left_alone(text: str) -> None:
    assert found(text) == []


def test_every_row_has_a_pattern_and_a_better_wording() -> None:
    assert len(TABLE) > 30
    assert all(better.strip() for _, better in TABLE)


def test_the_command_fails_for_a_document_with_a_planted_phrasing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad.md", tmp_path / "good.md"
    bad.write_text("Everything is made anew.\n", encoding="utf-8")
    good.write_text("Everything is made again.\n", encoding="utf-8")
    assert main([str(good)]) == 0
    assert capsys.readouterr().out == ""
    assert main([str(good), str(bad)]) == 1
    assert capsys.readouterr().out == f"{bad}:1: 'anew' -> 'again, newly'\n"
