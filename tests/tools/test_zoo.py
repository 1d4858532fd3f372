"""Every path that a command takes is fed with what nobody means to give: `tests.tools.zoo`."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from modeld.service.config import SETTINGS
from tests.support.built import built
from tests.tools.command_lines import BESIDE, MORE, outputs_of, words_of
from tests.tools.conftest import Modeld
from tests.tools.zoo import Beast, Outcome, feed, make_kinds, make_zoo
from tools.cli import COMMANDS
from tools.command_files import ARTIFACT, COMMAND_FILES, KEYS, PARAMS, STORE, attribute
from tools.lib.named_file import NOUNS, SURE, Role

# Of the kinds that a role takes, the one that comes first is the sample.
SAMPLES = ("artifact", "onnx", "video", "log", "zip", "text", "json")
CUT = ("artifact", "onnx", "zip")
# These say in their reports what is wrong with an artifact or a drive.
REPORTS = {"doctor": 1, "regress": 4}
# Files that are judged after another one, which is sound and yet not what it should be.
JUDGED_LATER = {("footage", "clip"), ("compare", "more")}


class Zoo(NamedTuple):
    """A directory, and the beasts in it."""

    place: Path
    beasts: list[Beast]


@pytest.fixture(scope="module")
def zoo() -> Iterator[Zoo]:
    # Not below tmp_path, which is closed to others.
    place = Path(tempfile.mkdtemp(prefix="zoo-"))
    place.chmod(0o777)
    yield Zoo(place, make_zoo(place, built("kinds", make_kinds)))
    shutil.rmtree(place)


def sample(role: Role) -> str:
    return next((f"a-{kind}" for kind in SAMPLES if kind in role.kinds), "a-directory")


def line(command: str, option: str, name: str) -> list[str]:
    """Return a command line that names something, with all else as it should be."""
    reads = COMMAND_FILES[command].reads.items()
    others = {attribute(one): sample(role) for one, role in reads}
    others |= {"from": "msgq:a", "to": "msgq:b"}
    others |= {attribute(one): "new" for one in outputs_of(command)}
    # One that is not there is made before a model is refused.
    others["store"] = "a-store"
    given = {beside: others.get(beside, "new") for beside in BESIDE.get(command, ())}
    return words_of(command, given | {attribute(option): name}, others)


def said_of(beast: Beast, role: Role) -> str | None:
    """Return what a refusal says of a beast; None where the reader judges; "" where it is right."""
    if beast.kind == "huge":  # text, to begin with
        return beast.said if "text" in role.kinds else NOUNS["text"]
    if beast.kind is not None:
        if beast.kind in role.kinds:
            return ""
        return None if not beast.kind and not role.kinds <= SURE else beast.said
    if beast.name == "a-directory":
        return None if role.may_be_directory or not role.kinds else beast.said
    if beast.name == "empty" and role.may_be_empty:
        return ""
    if "missing" in beast.name or beast.name == "dangling":
        return None if role.may_be_missing else beast.said
    return beast.said


def is_reached(command: str, option: str) -> bool:
    """Tell whether a command line of `line` makes the command read what this names."""
    is_given = not option.startswith("-") or attribute(option) in BESIDE.get(command, ())
    return is_given and (command, option) not in JUDGED_LATER


def judged(outcome: Outcome, beast: Beast, role: Role) -> str:
    """Return what is wrong with an outcome, "" where nothing is."""
    said = said_of(beast, role)
    if (outcome.code, outcome.err) == (REPORTS.get(outcome.words[0]), ""):
        return ""
    if said:
        return outcome.check(role.error.exit_code, f"{beast.name}: expected ", said)
    return outcome.check(role.error.exit_code, f"{beast.name}: ", beast.said)


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name in COMMANDS if COMMAND_FILES[name].reads])
def test_what_cannot_be_read_is_one_line(zoo: Zoo, command: str) -> None:
    asked: list[tuple[str, Beast, Role]] = []
    for option, role in COMMAND_FILES[command].reads.items():
        if option in MORE.get(command, ()):
            continue
        beasts = [beast for beast in zoo.beasts if said_of(beast, role)]
        if is_reached(command, option):
            beasts += [one._replace(said="") for one in zoo.beasts if said_of(one, role) is None]
            beasts += [Beast(f"cut-{kind}", "") for kind in CUT if sample(role) == f"a-{kind}"]
        asked += [(option, beast, role) for beast in beasts]
    lines = [line(command, option, beast.name) for option, beast, _ in asked]
    outcomes = feed(lines, zoo.place)
    closed = [index for index, (_, beast, _) in enumerate(asked) if beast.name == "closed"]
    by_stranger = feed([lines[index] for index in closed], zoo.place, stranger=True)
    for index, outcome in zip(closed, by_stranger, strict=True):
        outcomes[index] = outcome
    found = zip(outcomes, asked, strict=True)
    faults = [judged(outcome, beast, role) for outcome, (_, beast, role) in found]
    assert not any(faults), "\n".join(filter(None, faults))


# What is typed for a file that is written, and for a directory that gets files.
FILES = {
    "a-directory": "a directory",
    "/dev/null": "a character device",
    "a-pipe": "a FIFO",
    "/dev/full": "a character device",
    "a-socket": "a socket",
    "x" * 300: "too long",
    "missing/below": "to exist",
    "a-text/below": "",
    "loop": "Too many levels",
}
DIRECTORIES = {
    "a-text": "found text",
    "/dev/null": "a character device",
    "a-pipe": "a FIFO",
    "/dev/full": "a character device",
    "a-socket": "a socket",
    "x" * 300: "too long",
    "a-text/below": "found text at",
    "dangling": "link",
    "loop": "Too many levels",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name in COMMANDS if outputs_of(name)])
def test_what_cannot_be_written_is_one_line(zoo: Zoo, command: str) -> None:
    row, lines, expected = COMMAND_FILES[command], [], []
    for option in outputs_of(command):
        is_file = option in row.files or command == "replay"
        for name, said in (FILES if is_file else DIRECTORIES).items():
            if name == "a-directory" and option == "--output" and command == "replay":
                continue
            lines.append(line(command, option, name))
            expected.append((name, said))
    outcomes = feed(lines, zoo.place)
    faults = [one.check(2, *said) for one, said in zip(outcomes, expected, strict=True)]
    closed = [line(command, option, "/nobody-may-write-here") for option in outputs_of(command)]
    shown = "expected a directory that can be written"
    faults += [one.check(2, shown) for one in feed(closed, zoo.place, stranger=True)]
    assert not any(faults), "\n".join(filter(None, faults))


# What a daemon does with a path of its settings: reads it as a role says, or writes there.
SETTING_PATHS: dict[str, Role | dict[str, str]] = {
    "model": ARTIFACT,
    "fallback_model": ARTIFACT,
    "models_dir": replace(STORE, may_be_missing=False),
    "bus_keys": replace(KEYS, may_be_missing=False),
    "params_dir": replace(PARAMS, may_be_directory=False),
    "state_dir": DIRECTORIES,
    "metrics_file": FILES,
}
# A daemon waits for parameters, and another command reads them.
SETTING_COMMANDS = {"params_dir": "params"}


def settings_line(key: str, name: str, place: Path, *, by_variable: bool) -> list[str]:
    """Return a command line that names something by a setting, with all else as it should be."""
    command = SETTING_COMMANDS.get(key, "run")
    values = {} if key in ("models_dir", "params_dir") else {"model": "a-artifact"}
    # With a sound model beside it a daemon goes on without its fallback.
    values |= {"model": "cut-artifact"} if key == "fallback_model" else {}
    values |= {key: name}
    bus = ["--bus", f"ipc://{place}/a-directory", "-q"] if command == "run" else []
    if by_variable:
        return [*(f"MODELD_{one.upper()}={text}" for one, text in values.items()), command, *bus]
    file = place / f"{key}-{abs(hash(name))}.toml"
    file.write_text("".join(f"{one} = {json.dumps(text)}\n" for one, text in values.items()))
    return [command, "--config", str(file), *bus]


def judged_daemon(outcome: Outcome, name: str) -> str:
    """Return what is wrong with how a daemon was refused, whose log has lines of its own."""
    lines = outcome.err.splitlines()
    is_told = any(name in line for line in lines) and len(lines) <= 3
    if outcome.code == 4 and is_told and not outcome.left and "unexpected" not in outcome.err:
        return ""
    return f"{' '.join(outcome.words)}: {outcome.code}: {outcome.left} {outcome.err[-600:]}"


def path_settings() -> list[str]:
    return [key for key, one in SETTINGS.items() if one.kind is Path]


@pytest.mark.slow
@pytest.mark.parametrize("key", path_settings())
def test_a_path_of_the_settings_is_refused(zoo: Zoo, key: str) -> None:
    role = SETTING_PATHS[key]
    expected = role if isinstance(role, dict) else {}
    if isinstance(role, Role):
        expected = {one.name: one.said for one in zoo.beasts if said_of(one, role)}
        # What nobody may read is an empty file for root.
        expected.pop("closed", None)
    lines = [
        settings_line(key, name, zoo.place, by_variable=turn % 2 == 1)
        for turn, name in enumerate(expected)
    ]
    faults = []
    for outcome, (name, said) in zip(feed(lines, zoo.place), expected.items(), strict=True):
        if key in SETTING_COMMANDS:
            faults.append(outcome.check(1, f"{name}: expected the parameters of the stack"))
        elif isinstance(role, Role):
            faults.append(judged_daemon(outcome, name))
        else:
            faults.append(outcome.check(2, key, said))
    assert not any(faults), "\n".join(filter(None, faults))


@pytest.mark.slow
def test_config_shows_the_paths_of_the_settings_and_opens_none(zoo: Zoo) -> None:
    # The fallback has to be another one than the model.
    of_file = [key for key in path_settings() if key != "model"]
    of_variables = [key for key in path_settings() if key != "fallback_model"]
    lines = []
    for number, beast in enumerate(zoo.beasts):
        file = zoo.place / f"all-{number}.toml"
        file.write_text("".join(f"{key} = {json.dumps(beast.name)}\n" for key in of_file))
        lines.append(["config", "--config", str(file)])
        lines.append([*(f"MODELD_{key.upper()}={beast.name}" for key in of_variables), "config"])
    for turn, outcome in enumerate(feed(lines, zoo.place)):
        name = zoo.beasts[turn // 2].name
        assert (outcome.code, outcome.err, outcome.left) == (0, "", ()), outcome
        assert outcome.out.count(f'{name}"') == len(of_file), outcome


def sampled() -> Iterator[tuple[str, str, Role]]:
    """Yield the first argument of each role."""
    seen: set[Role] = set()
    for command in ("exec", "compare", "config", "view", "inspect"):
        for option, role in COMMAND_FILES[command].reads.items():
            if role not in seen:
                seen.add(role)
                yield command, option, role


def test_a_sample_of_the_zoo(zoo: Zoo, modeld: Modeld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(zoo.place)
    beasts = {beast.name: beast for beast in zoo.beasts}
    for command, option, role in sampled():
        for name in ("/dev/null", "a-pipe", "a-picture", "a-zip", "loop"):
            said = said_of(beasts[name], role)
            if said:
                words = line(command, option, name)
                modeld.refused(role.error.exit_code, f"{name}: expected {role.noun}", *words)


def test_a_sample_of_outputs(zoo: Zoo, modeld: Modeld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(zoo.place)
    for command, option in (("make-model", "directory"), ("demo", "--directory")):
        for name, said in DIRECTORIES.items():
            modeld.refused(2, said, *line(command, option, name))
