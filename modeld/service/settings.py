"""Describes settings as data: type, default, bounds, option and description.

``modeld.service.config`` declares its fields with `described`, and `settings_of` returns them as
`Setting` objects. Reading files, variables and options, the checks, the sample file, ``modeld
config`` and the options of ``modeld run`` are all derived from these objects.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from cereal.cameras import CAMERA_FORM, CameraAddress
from cereal.errors import FrameError, TransportError
from cereal.stacks import ADDRESS_FORM, BusAddress
from runtime.texts import float_of, int_of

_T = TypeVar("_T")

_DOC: Final = "doc"
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


@dataclasses.dataclass(frozen=True, slots=True)
class Doc:
    """The properties of a setting other than its name, type and default."""

    text: str  # description, in sentences
    bounds: tuple[float, float] | None = None  # smallest and largest number, inclusive
    # The permitted texts; taken from the field's type if that is a ``Literal``.
    choices: tuple[str, ...] = ()
    # Returns None for a valid text, else a description of the expected form.
    check: Callable[[str], str | None] | None = None
    example: str | float | None = None  # for the sample file, if the setting has no default
    # The option of ``modeld run`` with a placeholder for its value: ``--model FILE``.
    option: str | None = None
    # Keys of settings whose values from earlier sources this setting discards.
    covers: tuple[str, ...] = ()


def described(  # noqa: PLR0913 -- one argument for each property
    default: _T,
    text: str,
    *,
    bounds: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[str], str | None] | None = None,
    example: str | float | None = None,
    option: str | None = None,
    covers: tuple[str, ...] = (),
    made_by: Callable[[], _T] | None = None,
) -> _T:
    """Return the dataclass field of a setting.

    `made_by`, if given, returns the default of each instance in place of `default`. The other
    arguments are the fields of ``Doc``.
    """
    metadata = {_DOC: Doc(text, bounds, choices, check, example, option, covers)}
    found: Any = dataclasses.field(default=default, metadata=metadata)
    if made_by is not None:
        found = dataclasses.field(default_factory=made_by, metadata=metadata)
    return cast("_T", found)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    key: str  # key in a file, with the table and a dot: ``realtime.priority``
    kind: type  # bool, int, float, str or Path
    default: Any  # None if the description explains the default
    doc: Doc

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return f"MODELD_{self.key.upper().replace('.', '_')}"

    @property
    def expected(self) -> str:
        """The expected values, for messages."""
        doc = self.doc
        if doc.choices:
            return f"one of {', '.join(doc.choices)}"
        if doc.bounds is not None:
            return "{}..{}".format(*doc.bounds)
        if self.kind is bool:
            return "true or false"
        return {int: "a whole number", float: "a number", Path: "a path"}.get(self.kind, "a text")

    def parse(self, text: str) -> Any:
        """Return the value of the text of a variable or an option.

        Raises ValueError, whose message begins with "expected", if the text is malformed or the
        value is out of bounds.
        """
        if self.kind is bool:
            word = text.lower()
            if word not in (*_TRUE, *_FALSE):
                raise ValueError(f"expected true or false, got {text!r}")
            return word in _TRUE
        if self.kind in (int, float):
            try:
                number = int_of(text) if self.kind is int else float_of(text)
            except ValueError as error:
                raise ValueError(f"expected {self.expected}, got {text!r}") from error
            return self.checked(number)
        return self.checked(self.kind(text))

    def convert(self, value: Any) -> Any:
        """Return the setting's value for a value read from a file.

        Raises ValueError, whose message begins with "expected", if it has the wrong type or is out
        of bounds.
        """
        # In TOML, 1 is a valid float setting. In Python a bool is an int, but not in a file.
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return self.checked(float(value))
        held = str if self.kind is Path else self.kind
        if type(value) is not held:
            example = self.doc.example
            such_as = "" if example is None else f" such as {example!r}"
            raise ValueError(
                f"expected {held.__name__}{such_as}, got {type(value).__name__} {_short(value)}"
            )
        return self.checked(self.kind(value))

    def checked(self, value: Any) -> Any:
        """Return `value`, which has the setting's type, if it is valid.

        Raises ValueError, whose message begins with "expected", if it is not.
        """
        doc = self.doc
        expected = None
        if doc.bounds is not None:
            if not math.isfinite(value) or not doc.bounds[0] <= value <= doc.bounds[1]:
                expected = self.expected
        elif doc.choices:
            expected = None if value in doc.choices else self.expected
        elif doc.check is not None:
            expected = doc.check(value)
        elif self.kind is Path and "\0" in str(value):
            expected = self.expected
        if expected is not None:
            shown = str(value) if self.kind is Path else value
            raise ValueError(f"expected {expected}, got {_short(shown)}")
        return value


def settings_of(table: type, prefix: str = "") -> dict[str, Setting]:
    """Return the settings of a dataclass by key, including those of nested dataclasses."""
    found: dict[str, Setting] = {}
    hints = get_type_hints(table)
    for field in dataclasses.fields(table):
        key, kind = f"{prefix}{field.name}", hints[field.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            found |= settings_of(kind, f"{key}.")
            continue
        doc = field.metadata.get(_DOC)
        if doc is None:
            continue
        choices = next((get_args(k) for k in _members(kind) if get_origin(k) is Literal), ())
        if choices:
            doc = dataclasses.replace(doc, choices=choices)
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        (plain,) = (k for k in _members(kind) if k is not types.NoneType)
        found[key] = Setting(key, str if choices else plain, default, doc)
    return found


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean ...?" with the nearest known word, "" if there is none.

    A known word that begins with `word` is preferred, such as bus_address for bus. The common
    `prefix` is ignored.
    """
    short = word.removeprefix(prefix)
    names = {name.removeprefix(prefix): name for name in known}
    nearest = [name for name in names if len(short) > 2 and name.startswith(short)]
    nearest = nearest or difflib.get_close_matches(short, names, 1)
    return f"; did you mean {names[nearest[0]]}?" if nearest else ""


def differing(values: Mapping[str, Any], settings: Mapping[str, Setting]) -> str:
    """Return the settings that differ from their defaults, as ``key = value, ...``."""
    return ", ".join(
        f"{key} = {shown(value)}" for key, value in values.items() if value != settings[key].default
    )


def shown(value: Any) -> str:
    """Return a value in the notation of a file; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return toml_text(str(value))
    return repr(value)


def toml_text(text: str) -> str:
    """Return a text as a TOML basic string."""
    escaped = "".join(
        f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08X}" for c in text
    )
    return f'"{escaped}"'


def cpu_list(text: str) -> str | None:
    """Return None for a list such as "7" or "0-3,6", else the expected form.

    Whether these CPUs exist is not checked.
    """
    ranges = [
        re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part.strip()) for part in text.split(",")
    ]
    good = all(r is not None and int(r[1]) <= int(r[2] or r[1]) for r in ranges)
    return None if good else "CPUs as 7 or 0-3,6"


def address_form(text: str) -> str | None:
    """Return None for a well-formed bus address, else the expected form."""
    try:
        BusAddress.parse(text)
    except TransportError:
        return ADDRESS_FORM
    return None


def camera_form(text: str) -> str | None:
    """Return None for a well-formed camera address, else the expected form."""
    try:
        CameraAddress.parse(text)
    except FrameError:
        return CAMERA_FORM
    return None


def _members(kind: Any) -> tuple[Any, ...]:
    union = get_origin(kind) in (typing.Union, types.UnionType)
    return get_args(kind) if union else (kind,)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
