"""Validation of messages from other processes: they are converted to records before any use."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .protocol import ProtocolError
from .text import printable

T = TypeVar("T")
_MOST_SAID = 200


def record(value: object, kind: type[T]) -> T:
    """Convert plain JSON values to a record. Raises ProtocolError that says what is invalid."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(printable(str(error), _MOST_SAID)) from None
