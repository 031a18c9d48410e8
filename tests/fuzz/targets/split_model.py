"""A model in two files, of which the first names the second."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import gguf_fields, mutations
from tests.fuzz.target import Target
from tests.support import corpus
from tests.support.invariants import check_model


def seeds() -> Iterator[bytes]:
    """The split models of the tests, as two messages: the parts."""
    for entry in corpus.SPLITS:
        yield mutations.framed(*entry.files.values())
    yield mutations.framed(corpus.part(0), corpus.part(1))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One part mutated, or the messages."""
    parts = mutations.frames(data)
    if not parts or rng.randrange(8) == 0:
        return mutations.of_frames(data, rng)
    at = rng.randrange(len(parts))
    parts[at] = gguf_fields.mutate(parts[at], rng)
    return mutations.framed(*parts)


def check(folder: Path, data: bytes) -> None:
    """The model opens, or is refused in one line."""
    parts = mutations.frames(data)
    for name in (corpus.ONE, corpus.TWO):
        (folder / name).unlink(missing_ok=True)
    for name, part in zip((corpus.ONE, corpus.TWO), parts, strict=False):
        (folder / name).write_bytes(part)
    for name in (corpus.ONE, corpus.TWO):
        check_model(folder / name)


TARGET = Target(
    "split-model", "the two files of a split GGUF model", seeds, check, mutate, inputs=300, largest=1 << 14,
    covered=("gguf_verify.gguf.model",),
)  # fmt: skip
