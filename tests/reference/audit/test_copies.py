"""Matrices that are copies of others, and those that may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.records import Finding
from gguf_verify.support.array_types import Floats
from tests.support.audits import TINY, rule, run
from tests.support.tools import patched, write_model

Q4_0 = TINY["Q4_0"]


def copies(path: Path) -> list[Finding]:
    return [f for f in run(path, readers=False).findings if f.id == rule("copy")]


def of(path: Path, **tensors: Floats) -> list[Finding]:
    """The copies in a file of F32 tensors, whose names have no dots here."""
    return copies(write_model(path, {name.replace("__", "."): (x, "F32") for name, x in tensors.items()}))


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_a_matrix_that_was_written_twice(tmp_path: Path) -> None:
    with open_model(Q4_0) as model:
        gate, up = model.tensors["blk.0.ffn_gate.weight"], model.tensors["blk.0.ffn_up.weight"]
        path = patched(Q4_0, tmp_path / "m.gguf", up.offset, gate.raw.tobytes())
        start = up.offset
    (one,) = copies(path)
    assert (one.start, one.severity, one.owner) == (start, "warning", "blk.0.ffn_up.weight")
    assert one.found == "'blk.0.ffn_up.weight' is a copy of 'blk.0.ffn_gate.weight'"


def test_one_byte_makes_it_another_matrix(tmp_path: Path) -> None:
    with open_model(Q4_0) as model:
        gate, up = model.tensors["blk.0.ffn_gate.weight"], model.tensors["blk.0.ffn_up.weight"]
        raw = bytearray(gate.raw.tobytes())
        raw[2], raw[3] = raw[3], raw[2]  # of one block: its codes are as frequent as before
        assert raw != gate.raw.tobytes()
        path = patched(Q4_0, tmp_path / "m.gguf", up.offset, bytes(raw))
    assert copies(path) == []


def test_a_copy_in_another_layer(tmp_path: Path) -> None:
    x = drawn(1, 32, 64)
    others = {"blk__0__b__weight": drawn(2, 32, 64), "blk__1__b__weight": drawn(3, 32, 64)}
    (one,) = of(tmp_path / "m.gguf", blk__0__a__weight=x, blk__1__a__weight=x, **others)
    assert one.found == "'blk.1.a.weight' is a copy of 'blk.0.a.weight'"


def test_a_layer_that_is_repeated_as_a_whole(tmp_path: Path) -> None:
    a, b = drawn(1, 32, 64), drawn(2, 32, 64)
    layers = {f"blk__{i}__{n}__weight": x for i in range(3) for n, x in (("a", a), ("b", b))}
    assert of(tmp_path / "m.gguf", **layers) == []


def test_vectors_constants_and_the_vocabulary_may_be_the_same(tmp_path: Path) -> None:
    x, vector, table = np.ones((32, 64), np.float32), drawn(1, 1, 1024), drawn(2, 48, 64)
    assert of(
        tmp_path / "m.gguf", blk__0__attn_norm__weight=vector, blk__1__attn_norm__weight=vector, blk__0__a__weight=x,
        blk__0__b__weight=x, token_embd__weight=table, output__weight=table, blk__0__nextn__embed_tokens__weight=table,
    ) == []  # fmt: skip
