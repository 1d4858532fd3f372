"""Numbers of the command line: every numeric option of every command has bounds."""

import argparse
import importlib

import pytest

from tools.cli import COMMANDS
from tools.errors import UsageError
from tools.lib.options import above, real, seed, whole


@pytest.mark.parametrize("text", ["0", "11", "-1", "x", "", "nan", "inf", "1e1", "1.5", "9" * 400])
def test_texts_that_are_no_whole_number_within_the_bounds(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--n: expected a whole number from 1 to 10, found "):
        whole("--n", 1, 10)(text)


def test_whole_numbers_within_the_bounds() -> None:
    assert [whole("--n", 1, 10)(text) for text in ("1", "10", " 7 ")] == [1, 10, 7]
    assert seed()("0") == 0
    assert seed()(str(2**63 - 1)) == 2**63 - 1
    with pytest.raises(UsageError, match="--seed"):
        seed()(str(2**63))


@pytest.mark.parametrize("text", ["-1", "2.5", "nan", "inf", "-inf", "x", "1e400"])
def test_texts_that_are_no_number_within_the_bounds(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--s: expected a number from 0 up to 2, found "):
        real("--s", 0, 2)(text)
    with pytest.raises(UsageError, match=r"^--s: expected a number above 0 up to 2, found "):
        above("--s", 0, 2)(text)


def test_bounds_belong_to_numbers_but_for_above() -> None:
    assert [real("--s", 0, 2)(text) for text in ("0", "2")] == [0.0, 2.0]
    assert above("--s", 0, 2)("1e-9") == 1e-9
    with pytest.raises(UsageError, match="above 0"):
        above("--s", 0, 2)("0")


# Of these a choice is made, so they need no bounds.
CHOICES = {("inspect", "--adreno")}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_of_a_command_is_a_number_without_bounds(command: str) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[command].module).add_arguments(parser)
    parsers = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers += action.choices.values()
    bare = {
        (command, action.option_strings[0])
        for one in parsers
        for action in one._actions
        if action.type in (int, float) and action.option_strings
    }
    assert bare <= CHOICES
