"""The one error of making a place; its message is one line."""

from typing import ClassVar


class PlaceError(Exception):
    """This machine cannot have such a place; says why."""

    exit_code: ClassVar[int] = 3
