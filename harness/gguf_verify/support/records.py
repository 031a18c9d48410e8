"""What another process says, as a record: before that, nothing of it is used."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .protocol import ProtocolError
from .text import printable

T = TypeVar("T")
_MOST_SAID = 200


def record(value: object, kind: type[T]) -> T:
    """Plain values of JSON as a record. Raises ProtocolError, which says what they lack."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(printable(str(error), _MOST_SAID)) from None
