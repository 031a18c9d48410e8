"""Mutations of GGUF files by their fields, which the parser's own byte map tells apart."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from gguf_verify.gguf.parser import parse
from tests.fuzz import mutations

#: Keys and types that rules know, so that a mutation can put them in.
WORDS = (
    b"GGUF", b"general.alignment", b"general.architecture", b"general.file_type", b"llama.block_count",
    b"tokenizer.ggml.tokens", b"split.no", b"split.count", b"split.tensors.count", b"blk.0.attn_k.weight", b"\xff\xfe",
    b"\x1b[31m", b"PK\x03\x04", b"<!doctype", b"version https://git-lfs", b"\0" * 32,
)  # fmt: skip


def fields(data: bytes) -> list[bytes]:
    """The file's fields in order; joined they are the file again."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as saved:
        saved.write(data)
        saved.flush()
        try:
            with parse(Path(saved.name)) as file:
                return [data[r.start : r.stop] for r in file.byte_map]
        except Exception:  # it is found when this file is run
            return [data]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A number, a name or the place of a field changed; or any bytes."""
    if rng.randrange(3) == 0:
        return mutations.of_bytes(data, rng, WORDS)
    listed = fields(data)
    if len(listed) < 5:
        return mutations.of_bytes(data, rng, WORDS)
    at = rng.randrange(2, len(listed))
    match rng.randrange(8):
        case 0 | 1 | 2:  # a number, or the length before a name, or one of the dimensions
            size, place = rng.choice((4, 8, 8)), rng.choice((0, 0, 4))
            old = int.from_bytes(listed[at][place : place + size], "little")
            new = rng.choice((*mutations.LIES, old + 1, old - 1, old + 32, old * 2)) % (1 << 8 * size)
            listed[at] = listed[at][:place] + new.to_bytes(size, "little") + listed[at][place + size :]
        case 3:
            del listed[at]
        case 4:
            listed.insert(at, listed[at])
        case 5:
            other = rng.randrange(2, len(listed))
            listed[at], listed[other] = listed[other], listed[at]
        case 6:  # a lie in the middle of a large value
            value = listed[at]
            start = rng.randrange(max(1, len(value) - 8)) // 4 * 4
            listed[at] = value[:start] + mutations.of_bytes(value[start : start + 16], rng, WORDS) + value[start + 16 :]
        case _:
            listed[at] = mutations.of_bytes(listed[at], rng, WORDS)
    return b"".join(listed)
