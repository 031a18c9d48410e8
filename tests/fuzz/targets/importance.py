"""An importance matrix, in either format of llama-imatrix."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from gguf_verify.audit.importance import read_importance
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import open_model
from gguf_verify.support.errors import MalformedFile
from tests.fuzz import gguf_fields, mutations
from tests.fuzz.target import Target
from tests.support import corpus
from tests.support.refusals import refused_in_one_line


def old(*entries: tuple[bytes, int, tuple[float, ...]]) -> bytes:
    """A file of the older format: name, calls, values."""
    made = struct.pack("<i", len(entries))
    for name, calls, values in entries:
        made += struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(values))
        made += struct.pack(f"<{len(values)}f", *values)
    return made


def new(*tensors: tuple[str, tuple[int, ...], tuple[float, ...]]) -> bytes:
    """A file of the newer format: name, shape, values."""
    infos, data = [], b""
    for name, shape, values in tensors:
        infos.append(corpus.info(name, shape, corpus.T_F32, len(data)))
        raw = struct.pack(f"<{len(values)}f", *values)
        data += raw + bytes(-len(raw) % 32)
    pairs = [corpus.pair("general.type", corpus.STRING, corpus.text("imatrix"))]
    return corpus.gguf(pairs, infos, [data]).data


def seeds() -> Iterator[bytes]:
    """Files of both formats, right and wrong."""
    yield old((b"blk.0.attn_q.weight", 3, (1.0, 2.0, 4.0)), (b"output.weight", 0, (0.5,)))
    yield old((b"w", 1, (1.0,))) + b"the rest"
    yield old((b"token_embd.weight", 1, (1.0,)), (b"w", 2, (1.0,) * 8), (b"blk.0.attn_q.weight", 1, (2.0,)))
    yield old((b"w", 1, (0.5, -1.0)))
    yield old((b"w\0x", -1, (float("nan"), -1.0)))
    sums, counts = ("w.in_sum2", (4, 2), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)), ("w.counts", (1, 2), (2.0, 0.0))
    yield new(sums, counts)
    yield new(sums)
    yield new(counts)
    yield new(sums, ("w.counts", (1, 3), (1.0, 2.0, 3.0)))
    yield new(sums, ("w.counts", (1, 2), (float("inf"), 2.0**70)))
    yield new(("w.in_sum2", (2,), (-1.0, float("inf"))), ("w.counts", (1,), (1.0,)))
    yield new(("w.in_sum2", (0,), ()), ("w.counts", (1,), (1.0,)))
    yield new()
    yield corpus.gguf().data


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A field of the newer format, or a number of the older one."""
    if data[:4] == b"GGUF":
        return gguf_fields.mutate(data, rng)
    return mutations.of_bytes(data, rng, (b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"GGUF"))


@cache
def tensors() -> tuple[Tensor, ...]:
    """Tensors that the entries of the seeds are of."""
    shapes = {"w": (4, 1, 2), "blk.0.attn_q.weight": (3, 1), "token_embd.weight": (2, 1)}
    with tempfile.TemporaryDirectory() as folder:
        path, infos, at = Path(folder, "m.gguf"), [], 0
        for name, shape in shapes.items():
            infos.append(corpus.info(name, shape, corpus.T_F32, at))
            at += 32
        path.write_bytes(corpus.gguf([], infos, [bytes(at)]).data)
        with open_model(path) as model:
            return tuple(model.tensors.values())


def check(folder: Path, data: bytes) -> None:
    """Every value is finite and not negative, and no entry is larger than the file."""
    path = folder / "imatrix"
    path.write_bytes(data)
    with refused_in_one_line(MalformedFile):
        found = read_importance(path)
        for values in found.entries.values():
            assert values.dtype == np.float32
            assert values.nbytes <= len(data)
            assert (values >= 0).all()
            assert np.isfinite(values).all()
        for tensor in tensors():
            try:
                importance = found.of(tensor)
            except ValueError:
                continue
            assert importance is None or importance.shape == ((*tensor.shape, 1)[2], tensor.k)


TARGET = Target(
    "importance", "an importance matrix, GGUF or .dat", seeds, check, mutate, inputs=130,
    covered=("gguf_verify.audit.importance",),
)  # fmt: skip
