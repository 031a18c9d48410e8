"""A model in two files, of which the first names the second."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from gguf_verify.gguf.model import open_model
from tests.fuzz import gguf_fields, mutations
from tests.fuzz.target import Target
from tests.support import corpus
from tests.support.invariants import check_model
from tests.support.refusals import refused_in_one_line


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
    with refused_in_one_line(), open_model(folder / corpus.ONE) as model:
        assert model.size == sum(part.size for part in model.parts)
        assert len(model.tensors) == sum(len(part.tensors) for part in model.parts)
        info = model.info()
        assert len(info.sha256) == len(model.parts)
        assert sum(info.tensor_types.values()) == len(model.tensors)
        assert not model.changed
        assert model.altered() is None
        (folder / corpus.ONE).write_bytes(b"x" * model.parts[0].size)
        assert model.altered() is not None


TARGET = Target(
    "split-model", "the two files of a split GGUF model", seeds, check, mutate, inputs=150, largest=1 << 14,
    covered=("gguf_verify.gguf.model",),
)  # fmt: skip
