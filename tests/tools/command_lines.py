"""Command lines for tests over all commands, made from what their parsers take."""

import argparse
import importlib
from collections.abc import Iterator, Mapping

from tools.cli import COMMANDS
from tools.command_files import COMMAND_FILES, attribute

# Options without type that name no file: names, addresses, numbers, figures.
TEXTS = set(
    """
    allow against beside bind block bus camera_server cluster constant device drop dump entry
    field figure gate host ignore interface log_only model models name note publish reason rpy
    scenario service services picture_url set shard source subscribe target user version
    """.split()  # noqa: SIM905 - it is read as one list
)
# Of a path, nothing is read or written there: where to look, or a name that is only written down.
PLACES = {
    ("install-unit", "config"),
    ("install-unit", "store"),
    *((name, "data_dir") for name in COMMANDS),
}
SIZES = {("compile", "camera"), ("bench", "camera")}
# Options that `Files.more` looks at, by command, and what else has to be said for them.
MORE = {"replay": ["--output"], "regress": ["--reference"], "models": ["--store"]}
SAID = {
    "regress": ["--update", "--reason", "x"],
    "models": ["add", "--name", "x", "--version", "1"],
}

# What a command needs beside what it requires, to come as far as to its files.
BESIDE = {
    "bench": ["path"],
    "exec": ["inputs"],
    "export": ["mcap"],
    "install-unit": ["prefix"],
    # Without one, that of the machine would be written.
    "models": ["store"],
    "regress": ["model", "reference", "drives"],
    "replay": ["drives", "model"],
    "view": ["log"],
}


def options_of(command: str, *chosen: str) -> Iterator[argparse.Action]:
    """Yield what takes a value, also of the command's own commands: all, or those chosen."""
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[command].module).add_arguments(parser)
    parsers = [parser]
    while parsers:
        for action in parsers.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += [one for k, one in action.choices.items() if k in chosen or not chosen]
            elif action.nargs != 0:
                yield action


def named(command: str) -> set[str]:
    row = COMMAND_FILES[command]
    options = (*row.files, *row.directories, *row.reads)
    return {attribute(option) for option in (*options, *MORE.get(command, ()))}


def words_of(
    command: str, given: Mapping[str, str], others: Mapping[str, str] | None = None
) -> list[str]:
    """Return a command line with these options by attribute, and all that are needed."""
    words, positional = [], []
    said = SAID.get(command, [])
    for action in options_of(command, *said[:1]):
        texts = [given[action.dest]] if action.dest in given else []
        if not texts and (action.required and action.nargs != "*"):
            other = (others or {}).get(action.dest, "other")
            texts = [other if action.choices is None else str(next(iter(action.choices)))]
        if not texts:
            continue
        texts *= action.nargs if isinstance(action.nargs, int) else 1
        if action.option_strings:
            words += [action.option_strings[-1], *texts]
        else:
            positional += texts
    return [command, *said, *positional, *words]


def outputs_of(command: str) -> list[str]:
    row = COMMAND_FILES[command]
    return [*row.files, *row.directories, *MORE.get(command, [])]
