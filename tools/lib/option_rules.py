"""Which options do not go together, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tools.errors import UsageError


def is_given(value: object) -> bool:
    """Return whether a parsed option was given; a number of 0 was."""
    return value is not None and value is not False and value not in ([], ())


def refuse(given: Mapping[str, object], rules: Iterable[tuple[str, str]]) -> None:
    """Raise the first rule that holds: a UsageError about the option of its first term.

    Args:
        given: the parsed options, and what else rules name, by attribute.
        rules: terms, all of which must hold, and a message. ``a|b`` holds if one of these options
            is given, ``!a|b`` if none is; ``{1}`` in the message is the second term's option.
    """
    for terms, message in rules:
        flags = []
        for term in terms.split():
            names = term.lstrip("!").split("|")
            found = [name for name in names if is_given(given[name])]
            if bool(found) is term.startswith("!"):
                break
            flags.append(f"--{(found or names)[0].replace('_', '-')}")
        else:
            raise UsageError(f"{flags[0]}: {message.format(*flags)}")
