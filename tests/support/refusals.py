"""What is true of every error that a user meets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gguf_verify.support.errors import HarnessError


@contextmanager
def refused_in_one_line(*kinds: type[Exception], most: int = 2000) -> Iterator[None]:
    """Nothing but these errors may be raised (any HarnessError by default), and each is one printable line."""
    allowed = kinds or (HarnessError,)
    try:
        yield
    except allowed as error:
        said = str(error)
        assert said.isprintable(), said[:300]
        assert 0 < len(said) <= most, said[:300]
