"""Manage the store of models that the daemon runs from: add, check, select, roll back.

A model version is copied into the store with its digest, and run once before it is listed. The
daemon runs the selected version if its configuration names models_dir and no model; the previous
selection is kept. Select and rollback work only while the car is parked, that is, while no process
on the bus reports that it drives. The daemon loads the selected version when it reloads, or at its
next start. Roles: driving, fallback (takes over if the driving model fails), monitoring. list, show
and remove listen on the bus for the running models. The sha256 is always the artifact's. Artifacts
of one program (a model compiled twice) share the program's digest.

Example:
  modeld models add driving.pkl --name example --version 1.2
  modeld models select example@1.2
  modeld models rollback --role driving
  modeld models list
  modeld models show example@1.2
  modeld models remove example@1.1
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cereal.errors import CerealError
from modeld.errors import ModeldError, StoreError
from modeld.service.config import Config
from modeld.service.config_sources import Given, load_config
from modeld.store.model_store import DEFAULT_STORE, ModelStore, SelfTest, remove
from modeld.store.records import ROLES, Entry, ModelId, Selected
from runtime.errors import RuntimeFault
from runtime.texts import size_text
from tools.lib.json_output import print_json
from tools.lib.model_options import lineage_text
from tools.lib.terminal import format_table, printable
from tools.service.options import add_stack_arguments
from tools.service.running_models import (
    Run,
    open_transport,
    roles_of,
    running_models,
    why_not_parked,
)

logger = logging.getLogger(__name__)

_UNIT = {
    "driving": "modeld",
    "fallback": "modeld",
    "monitoring": "dmonitoringmodeld",
}
_SHORT_DIGEST = 12
_HEADER = (
    *("model", "version", "kind", "sha256", "program", "size"),
    *("added", "selected", "running", "sound"),
)
# Option -> the setting that it overrides.
_SETTINGS = {
    "store": "models_dir",
    "bus": "bus_address",
    "stack": "stack",
    "port_hash": "port_hash",
    "device": "device",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and the options of each."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    listing = _action(actions, "list", "list the models, and which are selected, running and sound")
    show = _action(actions, "show", "show all facts about a model and its lineage")
    show.add_argument("model", metavar="NAME[@VERSION]", help="the version")
    add = _action(actions, "add", "copy an artifact into the store, after checking and running it")
    add.add_argument("file", type=Path, help="driving or driver monitoring artifact")
    add.add_argument("--name", required=True, help="a-z 0-9 . _ -")
    add.add_argument("--version", required=True, help="a-z 0-9 . _ -")
    verify = _action(actions, "verify", "check every byte of stored models")
    verify.add_argument("models", nargs="*", metavar="NAME[@VERSION]", help="versions (all)")
    verify.add_argument("--run", action="store_true", help="run them on the device, too")
    select = _action(actions, "select", "select the model that the daemon runs")
    select.add_argument("model", metavar="NAME[@VERSION]", help="the version")
    select.add_argument("--role", choices=ROLES, help="role (by the model's kind)")
    rollback = _action(actions, "rollback", "go back to the model that was selected before")
    rollback.add_argument("--role", choices=ROLES, default="driving", help="role (driving)")
    for changing in (select, rollback):
        changing.add_argument("--force", action="store_true", help="even while the car drives")
    remove = _action(actions, "remove", "remove a model that is neither selected nor runs")
    remove.add_argument("model", metavar="NAME[@VERSION]", help="the version")
    remove.add_argument(
        "--force", action="store_true", help="even a running or previously selected one"
    )
    for hearing in (listing, show, remove, select, rollback):
        hearing.add_argument(
            "--bus", metavar="ADDRESS", help="tcp://HOST or ipc:///DIRECTORY (tcp://127.0.0.1)"
        )
        add_stack_arguments(hearing)
    for running in (add, verify, select, rollback):
        running.add_argument("--device", help="OpenCL device, see modeld devices (the best)")


def run(args: argparse.Namespace) -> int:
    """Run the action and return the exit code: 4 if a stored model is damaged, else 0."""
    config = load_config(args.config, os.environ, _settings_given(args))
    store = ModelStore(config.models_dir or DEFAULT_STORE)
    if args.action == "list":
        return _list(store, _runs(store, config), as_json=args.json)
    if args.action == "show":
        return _show(store, args, config)
    if args.action == "remove":
        return _remove(store, args, config)
    if args.action == "verify":
        return _verify(store, args, config)
    if args.action == "add":
        return _add(store, args, config)
    return _switch(store, args, config)


def _settings_given(args: argparse.Namespace) -> list[Given]:
    values = vars(args)
    return [
        Given(key, str(values[name]), f"--{name.replace('_', '-')}")
        for name, key in _SETTINGS.items()
        if values.get(name) is not None
    ]


def _action(actions: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
    parser.add_argument("--store", type=Path, metavar="DIRECTORY", help=f"({DEFAULT_STORE})")
    parser.add_argument(
        "--config", type=Path, metavar="TOML", help="settings file, for models_dir and the bus"
    )
    # The options of modeld itself, repeated so that they are accepted after the action, too.
    for short, long in (("-v", "--verbose"), ("-q", "--quiet")):
        parser.add_argument(short, long, action="count", default=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    return parser


def _runs(store: ModelStore, config: Config) -> list[Run]:
    """Return the running models; log a warning and return none if the bus cannot be opened."""
    try:
        return running_models(store, config)
    except (CerealError, ModeldError) as error:
        logger.warning("the running models are not known: %s", error)
        return []


def _list(store: ModelStore, runs: list[Run], *, as_json: bool) -> int:
    entries, selection = store.entries(), store.selection()
    unsound = [entry for entry in entries if entry.problem]
    if as_json:
        print_json(
            {
                "store": str(store.directory),
                "models": [_plain(entry, selection, runs) for entry in entries],
                "selected": {role: _plain_selected(one) for role, one in selection.items()},
                "running": {run.role: run.model for run in runs},
            }
        )
    elif entries:
        print(format_table(_HEADER, [_row(entry, selection, runs) for entry in entries]))
    else:
        print(f"{store.directory}: no models; modeld models add adds one")
    if not as_json:
        for run in runs:
            if not run.in_store:
                print(f"{run.role} runs a model from outside the store: {printable(run.model)}")
    for entry in unsound:
        logger.error("%s", entry.problem)
    return StoreError.exit_code if unsound else 0


def _row(entry: Entry, selection: dict[str, Selected], runs: list[Run]) -> tuple[object, ...]:
    sound = "no" if entry.problem else "yes"
    manifest = entry.manifest
    if manifest is None:
        return (entry.directory.name, *[None] * 6, "", "", sound)
    marks = ", ".join(_marks(manifest.id, selection))
    digests = [digest[:_SHORT_DIGEST] for digest in (entry.sha256, entry.program_sha256)]
    return (
        *(manifest.name, manifest.version, manifest.kind, *digests, size_text(manifest.size)),
        *(manifest.added, marks, ", ".join(roles_of(str(manifest.id), runs)), sound),
    )


def _show(store: ModelStore, args: argparse.Namespace, config: Config) -> int:
    model = store.find(args.model)
    selection, runs = store.selection(), _runs(store, config)
    entry = next(one for one in store.entries() if one.manifest and one.manifest.id == model)
    facts = _plain(entry, selection, runs)
    if args.json:
        print_json({"store": str(store.directory), **facts})
    else:
        rows: list[tuple[object, ...]] = [
            *((name.replace("_", " "), value) for name, value in facts["manifest"].items()),
            ("sha256", entry.sha256),
            ("program sha256", entry.program_sha256),
            ("selected", ", ".join(_marks(model, selection))),
            ("running", ", ".join(facts["running"])),
            ("sound", "no" if entry.problem else "yes"),
            *((f"lineage {name}", printable(value)) for name, value in entry.lineage.items()),
        ]
        print(format_table((str(model), ""), rows))
    if entry.problem:
        logger.error("%s", entry.problem)
    return StoreError.exit_code if entry.problem else 0


def _remove(store: ModelStore, args: argparse.Namespace, config: Config) -> int:
    # With a version the manifest is not read, so that a damaged model can be removed, too.
    model = ModelId.of(args.model) if "@" in args.model else store.find(args.model)
    roles = roles_of(str(model), _runs(store, config))
    if roles and not args.force:
        raise StoreError(
            f"{store.directory / str(model)}: expected a model that does not run, but it does for "
            f"{', '.join(roles)}; tell its daemon to reload while parked, or use --force"
        )
    remove(store, model, force=args.force)
    if args.json:
        print_json({"store": str(store.directory), "removed": str(model)})
    else:
        print(f"{model}: removed")
    return 0


def _marks(model: ModelId, selection: dict[str, Selected]) -> list[str]:
    marks = []
    for role, one in selection.items():
        if one.current == model:
            marks.append(role)
        elif one.previous == model:
            marks.append(f"{role} before")
    return marks


def _plain(entry: Entry, selection: dict[str, Selected], runs: list[Run]) -> dict[str, Any]:
    model = entry.manifest.id if entry.manifest else None
    return {
        "directory": entry.directory.name,
        "manifest": asdict(entry.manifest) if entry.manifest else None,
        "current": [role for role, one in selection.items() if model and one.current == model],
        "previous": [role for role, one in selection.items() if model and one.previous == model],
        "running": roles_of(str(model), runs),
        "sha256": entry.sha256 or None,
        "program_sha256": entry.program_sha256 or None,
        "lineage": dict(entry.lineage),
        "sound": not entry.problem,
        "problem": entry.problem or None,
    }


def _plain_selected(one: Selected) -> dict[str, str | None]:
    return {
        "current": str(one.current) if one.current else None,
        "previous": str(one.previous) if one.previous else None,
    }


def _verify(store: ModelStore, args: argparse.Namespace, config: Config) -> int:
    self_test = _self_test(config) if args.run else None
    problems: dict[str, str | None] = {}
    for name in args.models or [entry.directory.name for entry in store.entries()]:
        try:
            model = store.find(name)
            store.verify(model)
            if self_test is not None:
                self_test(store.path_of(model))
            problems[str(model)] = None
        except (ModeldError, RuntimeFault) as error:
            problems[name] = str(error)
    found = [problem for problem in problems.values() if problem]
    if args.json:
        print_json({"store": str(store.directory), "problems": problems})
    else:
        for name, problem in problems.items():
            print(f"{name}: {'not sound' if problem else 'sound'}")
    for problem in found:
        logger.error("%s", problem)
    return StoreError.exit_code if found else 0


def _add(store: ModelStore, args: argparse.Namespace, config: Config) -> int:
    manifest = store.add(
        args.file,
        ModelId.checked(args.name, args.version),
        now_s=datetime.now(UTC).timestamp(),
        self_test=_self_test(config),
    )
    entries = [one for one in store.entries() if not one.problem]
    (entry,) = (one for one in entries if one.manifest and one.manifest.id == manifest.id)
    # Two compilations of one model differ in their binaries, so only the program digest is equal.
    alike = {
        one.directory.name: one.sha256 == entry.sha256
        for one in entries
        if one is not entry and one.program_sha256 == entry.program_sha256
    }
    if args.json:
        print_json(
            {
                "store": str(store.directory),
                "manifest": asdict(manifest),
                "sha256": entry.sha256,
                "program_sha256": entry.program_sha256,
                "lineage": dict(entry.lineage),
                "same_artifact": [name for name, is_same in alike.items() if is_same],
                "same_program": list(alike),
            }
        )
        return 0
    print(
        f"{manifest.id}: {manifest.kind}, {size_text(manifest.size)}, sha256 "
        f"{entry.sha256[:_SHORT_DIGEST]}, program {entry.program_sha256[:_SHORT_DIGEST]}"
    )
    if entry.lineage:
        print(f"lineage: {lineage_text(entry.lineage)}")
    for name, is_same in alike.items():
        print(f"the same {'artifact as' if is_same else 'program, compiled again, as'} {name}")
    print(f"activate it with: modeld models select {manifest.id}")
    return 0


def _switch(store: ModelStore, args: argparse.Namespace, config: Config) -> int:
    """Select a model or roll back, if the car is parked."""
    self_test = _self_test(config)
    if args.action == "select":
        model = store.find(args.model)
        role = args.role or store.manifest(model).kind
        _check_parked(config, force=args.force)
        selected = store.select(model, role, self_test=self_test)
    else:
        role = args.role
        _check_parked(config, force=args.force)
        selected = store.rollback(role, self_test=self_test)
    if args.json:
        print_json({"store": str(store.directory), "role": role, **_plain_selected(selected)})
    else:
        before = f"before: {selected.previous}" if selected.previous else "nothing before"
        print(f"{role}: {selected.current} ({before})")
        print(f"the daemon loads it at its next start, or with: systemctl reload {_UNIT[role]}")
    return 0


def _self_test(config: Config) -> SelfTest:
    # Imported here: listing models does not need the runtime.
    from tools.service.running_models import self_test_on

    return self_test_on(config.device)


def _check_parked(config: Config, *, force: bool) -> None:
    """Raise StoreError if the car drives; with `force`, log a warning instead."""
    transport = open_transport(config)
    if transport is None:
        return
    try:
        reason = why_not_parked(transport)
    finally:
        transport.close()
    if not reason:
        return
    if not force:
        raise StoreError(
            f"{config.addresses}: expected a parked car, but {reason}; nothing was switched, "
            "park it or use --force"
        )
    logger.warning("switched although %s", reason)
