"""Crafted GGUF files, built by code: one for each thing that a strict reader must catch, and those it must accept.

The writer below can lie in every field, since a file is a list of byte chunks. The chunk that is to blame is a `Mark`;
its place is where the finding has to point, known from the writing and not from the parser under test.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
#: ggml type numbers, and the bytes of one block of 32.
T_F32, T_F16, T_Q4_0, T_Q4_2, T_Q8_0, T_Q8_1, T_I8, T_BF16, T_Q4_0_4_4, T_Q2_0 = 0, 1, 2, 4, 8, 9, 24, 30, 31, 42
Q4_0_BYTES, Q8_0_BYTES = 18, 34
NAN = struct.pack("<f", float("nan"))


class Mark(bytes):
    """The chunk that a finding has to point at; empty where bytes are missing."""


@dataclass(frozen=True)
class Built:
    """A file, and the bytes `start` to `stop` of it that are to blame (the whole file where none are)."""

    data: bytes
    start: int
    stop: int


@dataclass(frozen=True)
class Entry:
    """A crafted file and the one finding it has to give.

    Args:
        name: also the line of the specification that it stands for.
        build: makes the file.
        slug: the rule, or None for a file to be accepted in silence.
        effect: "refuse", "error", "warning", or None likewise.
        claim: found by the check of the metadata's claims, not by the parser.
        file_name: what to save it as, where that matters.
    """

    name: str
    build: Callable[[], Built]
    slug: str | None = None
    effect: str | None = None
    claim: bool = False
    file_name: str = "crafted.gguf"


@dataclass(frozen=True)
class SplitEntry:
    """A split model: files by name, the one to open, and the rule and file that its refusal has to name."""

    name: str
    files: dict[str, bytes]
    opened: str
    slug: str | None = None
    named: str = ""


# -- the writer -------------------------------------------------------------------------------------------------


def u32(value: int) -> bytes:
    return struct.pack("<I", value & 0xFFFFFFFF)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF)


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A GGUF string, whose length may lie."""
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw) if length is None else length) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> list[bytes]:
    """Key, value type, value."""
    return [text(key), u32(kind), value]


def array(key: str, kind: int, count: int, elements: Sequence[bytes]) -> list[bytes]:
    """Key, value type, element type, count, the elements: one chunk each."""
    return [text(key), u32(ARRAY), u32(kind), u64(count), *elements]


def info(name: str | bytes, shape: Sequence[int], kind: int, offset: int, n: int | None = None) -> list[bytes]:
    """Name, number of dimensions, dimensions (a chunk each), type, offset."""
    return [text(name), u32(len(shape) if n is None else n), *map(u64, shape), u32(kind), u64(offset)]


def marked(chunks: Sequence[bytes], first: int, last: int | None = None) -> list[bytes]:
    """The chunks with those from `first` to `last` joined into the one to blame; negative ones count from the end."""
    first %= len(chunks)
    last = first if last is None else last % len(chunks)
    return [*chunks[:first], Mark(b"".join(chunks[first : last + 1])), *chunks[last + 1 :]]


def build(chunks: Iterable[bytes], cut: int = 0) -> Built:
    """Joins the chunks and drops the last `cut` bytes. Without a mark everything is to blame."""
    data = b""
    start, stop = 0, None
    for chunk in chunks:
        if isinstance(chunk, Mark):
            start, stop = len(data), len(data) + len(chunk)
        data += chunk
    data = data[: len(data) - cut]
    return Built(data, min(start, len(data)), len(data) if stop is None else min(stop, len(data)))


PAIRS = [pair("general.name", STRING, text("crafted")), pair("crafted.flag", BOOL, b"\1")]
#: Two tensors: 8 floats, and 2 rows of one Q4_0 block each, 36 bytes that padding makes 64.
INFOS = [info("a.weight", [8], T_F32, 0), info("b.weight", [32, 2], T_Q4_0, 32)]
A = bytes(range(1, 33))
B = bytes(range(1, 37))
DATA: list[bytes] = [A, B, bytes(28)]


def gguf(
    pairs: Sequence[Sequence[bytes]] = PAIRS,
    infos: Sequence[Sequence[bytes]] = INFOS,
    data: Sequence[bytes] = DATA,
    *,
    magic: bytes = b"GGUF",
    version: bytes = u32(3),
    n_tensors: bytes | None = None,
    n_pairs: bytes | None = None,
    alignment: int = 32,
    header_padding: Callable[[int], Sequence[bytes]] = lambda n: [bytes(n)],
    cut: int = 0,
) -> Built:
    """A whole file, right unless told otherwise."""
    head = [
        magic, version, u64(len(infos)) if n_tensors is None else n_tensors,
        u64(len(pairs)) if n_pairs is None else n_pairs,
    ]  # fmt: skip
    head += [chunk for part in (*pairs, *infos) for chunk in part]
    padding = header_padding(-sum(map(len, head)) % alignment) if infos else []
    return build([*head, *padding, *data], cut)


def with_pair(chunks: Sequence[bytes]) -> Built:
    """The good file with one more pair."""
    return gguf([*PAIRS, chunks])


def with_second(chunks: Sequence[bytes], data: Sequence[bytes] = DATA) -> Built:
    """The good file with another second tensor."""
    return gguf(infos=[INFOS[0], chunks], data=data)


def aligned(value: bytes, kind: int = U32, mark: int = 2, alignment: int = 32) -> Built:
    """The good file with a general.alignment."""
    chunks = marked(pair("general.alignment", kind, value), mark)
    offset = max(alignment, 32)
    return gguf(
        [*PAIRS, chunks], [INFOS[0], info("b.weight", [32, 2], T_Q4_0, offset)],
        [A, bytes(-len(A) % offset), B, bytes(-len(B) % alignment)], alignment=alignment,
    )  # fmt: skip


# -- the structure ----------------------------------------------------------------------------------------------


def big_endian() -> Built:
    key = b"general.name"
    return build([
        b"GGUF", Mark(struct.pack(">I", 3)), struct.pack(">QQ", 0, 1), struct.pack(">Q", len(key)), key,
        struct.pack(">I", STRING), struct.pack(">Q", 1), b"x",
    ])  # fmt: skip


def nested(depth: int, mark: int | None) -> Built:
    """An array in an array, `depth` deep, the innermost of two bytes; the head of level `mark` is to blame."""
    heads: list[bytes] = [u32(ARRAY) + u64(1) for _ in range(depth - 1)] + [u32(U8) + u64(2)]
    if mark is not None:
        heads[mark] = Mark(heads[mark])
    return with_pair([text("deep"), u32(ARRAY), *heads, b"\1\2"])


def nested_many(count: int) -> Built:
    """So many empty arrays in an array, the last of which is to blame."""
    head = u32(U8) + u64(0)
    return with_pair([*array("many", ARRAY, count, [head * (count - 1)]), Mark(head)])


def header_padding(n: int) -> list[bytes]:
    assert n > 2, "the crafted header ends on the alignment: change a name"
    return [bytes(n - 2), Mark(b"\x07"), b"\0"]


def in_value_of(chunk: bytes) -> list[bytes]:
    """A pair whose string value's bytes are to blame."""
    return [text("crafted.text"), u32(STRING), u64(len(chunk)), Mark(chunk)]


REFUSED = [
    Entry("empty file", lambda: build([Mark(b"")]), "magic"),
    Entry("text file", lambda: build([Mark(b"Once"), b" upon a time\n" * 4]), "magic"),
    Entry("wrong magic", lambda: gguf(magic=Mark(b"GGUf")), "magic"),
    Entry("three bytes", lambda: build([Mark(b"GGU")]), "truncated"),
    Entry("cut in the counts", lambda: build([b"GGUF", u32(3), u64(0), Mark(b"\0\0\0")]), "truncated"),
    Entry("version 0", lambda: gguf(version=Mark(u32(0))), "version"),
    Entry("version 1", lambda: gguf(version=Mark(u32(1))), "version"),
    Entry("version 4", lambda: gguf(version=Mark(u32(4))), "version"),
    Entry("big-endian", big_endian, "big-endian"),
    Entry("tensor count -1", lambda: gguf(n_tensors=Mark(u64(-1))), "tensor-count"),
    Entry("tensor count 2^60", lambda: gguf(n_tensors=Mark(u64(1 << 60))), "tensor-count"),
    Entry("tensor count beyond the file", lambda: gguf(n_tensors=Mark(u64(100))), "truncated"),
    Entry("more tensors than 2^17", lambda: gguf(n_tensors=Mark(u64((1 << 17) + 1)), data=[bytes(24 << 17)]),
          "tensor-count"),
    Entry("more keys than 2^16", lambda: gguf(n_pairs=Mark(u64((1 << 16) + 1)), data=[bytes(13 << 16)]), "key-count"),
    Entry("more arrays in an array than 16384", lambda: nested_many((1 << 14) + 1), "metadata-size"),
    Entry("key count -1", lambda: gguf(n_pairs=Mark(u64(-1))), "key-count"),
    Entry("key count 2^60", lambda: gguf(n_pairs=Mark(u64(1 << 60))), "key-count"),
    Entry("key count beyond the file", lambda: gguf(n_pairs=Mark(u64(100))), "truncated"),
    Entry("empty key", lambda: with_pair(marked(pair("", U8, b"\1"), 0)), "empty-key"),
    Entry("key length 2^60", lambda: with_pair([Mark(u64(1 << 60)), b"key"]), "string-length"),
    Entry("NUL in a key", lambda: with_pair(marked(pair("general.alignment\0x", U8, b"\1"), 0)), "nul-in-name"),
    Entry("duplicate key", lambda: with_pair(marked(pair("general.name", U8, b"\1"), 0)), "duplicate-key"),
    Entry("unknown value type", lambda: with_pair(marked(pair("key", 13, b"\1"), 1)), "value-type"),
    Entry("unknown element type", lambda: with_pair(marked(array("key", 99, 0, []), 2)), "value-type"),
    Entry("string value length 2^60", lambda: with_pair([text("key"), u32(STRING), Mark(u64(1 << 60)), b"x"]),
          "string-length"),
    Entry("string in an array too long",
          lambda: with_pair(array("key", STRING, 2, [text("x"), Mark(u64(1 << 62)), b"y"])), "string-length"),
    Entry("array length 2^60", lambda: with_pair(marked(array("key", U8, 1 << 60, [b"\1"]), 3)), "array-length"),
    Entry("array length wraps", lambda: with_pair(marked(array("key", U64, (1 << 61) + 1, [u64(1)]), 3)),
          "array-length"),
    Entry("array of strings 2^60", lambda: with_pair(marked(array("key", STRING, 1 << 60, [text("x")]), 3)),
          "array-length"),
    Entry("array cut in a length",
          lambda: gguf([array("key", STRING, 2, [text("seven by"), Mark(b"\0\0\0")])], [], []), "truncated"),
    Entry("nested arrays too deep", lambda: nested(5, 3), "nested-too-deep"),
    Entry("alignment 0", lambda: aligned(u32(0)), "alignment-value"),
    Entry("alignment 24", lambda: aligned(u32(24)), "alignment-value"),
    Entry("alignment 2^31", lambda: aligned(u32(1 << 31)), "alignment-huge"),
    Entry("alignment of type uint64", lambda: aligned(u64(32), U64, 1), "alignment-type"),
    Entry("alignment of type string", lambda: aligned(text("32"), STRING, 1), "alignment-type"),
    Entry("tensor name of 64 bytes", lambda: with_second(marked(info("n" * 64, [32, 2], T_Q4_0, 32), 0)),
          "long-tensor-name"),
    Entry("tensor name length -1", lambda: with_second([Mark(u64(-1)), b"b"]), "string-length"),
    Entry("NUL in a tensor name", lambda: with_second(marked(info("b\0c", [32, 2], T_Q4_0, 32), 0)), "nul-in-name"),
    Entry("duplicate tensor", lambda: with_second(marked(info("a.weight", [32, 2], T_Q4_0, 32), 0)),
          "duplicate-tensor"),
    Entry("5 dimensions", lambda: with_second(marked(info("b", [32, 2, 1, 1, 1], T_Q4_0, 32), 1)),
          "too-many-dimensions"),
    Entry("2^32 - 1 dimensions", lambda: with_second(marked(info("b", [32, 2], T_Q4_0, 32, -1), 1)),
          "too-many-dimensions"),
    Entry("negative dimension", lambda: with_second(marked(info("b", [32, -2], T_Q4_0, 32), 3)), "negative-dimension"),
    Entry("dimensions overflow", lambda: with_second(marked(info("b", [1 << 40, 1 << 40], T_Q4_0, 32), 2, 3)),
          "dimensions-overflow"),
    Entry("dimensions wrap to a small product",
          lambda: with_second(marked(info("b", [1 << 32, 1 << 32], T_Q4_0, 32), 2, 3)), "dimensions-overflow"),
    Entry("2^63 elements in fewer bytes",
          lambda: with_second(marked(info("b", [1 << 32, 1 << 31], T_Q4_0, 32), 2, 3)), "dimensions-overflow"),
    Entry("dimensions overflow beside a zero",
          lambda: with_second(marked(info("b", [1 << 40, 0, 1 << 40], T_F32, 32), 2, 4)), "dimensions-overflow"),
    Entry("dimensions overflow behind a zero",
          lambda: with_second(marked(info("b", [0, 1 << 40, 1 << 40], T_F32, 32), 2, 4)), "dimensions-overflow"),
    Entry("bytes overflow", lambda: with_second(marked(info("b", [1 << 62], T_F32, 32), 2)), "dimensions-overflow"),
    Entry("unknown tensor type", lambda: with_second(marked(info("b", [32, 2], 9999, 32), -2)), "tensor-type"),
    Entry("negative tensor type", lambda: with_second(marked(info("b", [32, 2], -1, 32), -2)), "tensor-type"),
    Entry("removed tensor type Q4_2", lambda: with_second(marked(info("b", [32, 2], T_Q4_2, 32), -2)), "tensor-type"),
    Entry("removed tensor type Q4_0_4_4", lambda: with_second(marked(info("b", [32, 2], T_Q4_0_4_4, 32), -2)),
          "tensor-type"),
    Entry("row of 33 in blocks of 32", lambda: with_second(marked(info("b", [33, 2], T_Q4_0, 32), 2)), "partial-block"),
    Entry("row of 16, two of which are a block", lambda: with_second(marked(info("b", [16, 4], T_Q4_0, 32), 2)),
          "partial-block"),
    Entry("offset misaligned", lambda: with_second(marked(info("b", [32, 1], T_Q4_0, 33), -1)), "offset-misaligned"),
    Entry("offset -1", lambda: with_second(marked(info("b", [32, 2], T_Q4_0, -1), -1)), "offset-outside"),
    Entry("offset wraps into the file", lambda: with_second(marked(info("b", [32, 2], T_Q4_0, -64), -1)),
          "offset-outside"),
    Entry("offset past the end", lambda: with_second(marked(info("b", [32, 2], T_Q4_0, 1 << 20), -1)),
          "offset-outside"),
    Entry("offset overlaps", lambda: with_second(marked(info("b", [32, 2], T_Q4_0, 0), -1)), "overlap"),
    Entry("offset overlaps a tensor described later",
          lambda: gguf(infos=[info("a", [8], T_F32, 32), marked(info("b", [32, 2], T_Q4_0, 0), -1)],
                       data=[B, bytes(28)]), "overlap"),
    Entry("offset too large by one byte",
          lambda: with_second(marked(info("b", [32, 2], T_Q4_0, 64), -1), [A, bytes(32), B[:-1]]), "offset-outside"),
    Entry("data truncated by one byte", lambda: gguf(data=[A, Mark(B)], cut=1), "data-truncated"),
    Entry("data cut before a tensor", lambda: gguf(data=[A, Mark(b"")]), "data-truncated"),
    Entry("4 TiB of data claimed", lambda: with_second(info("b", [1 << 40], T_F32, 32), [A, Mark(B)]),
          "data-truncated"),
    Entry("cut in the header's padding", lambda: gguf(data=[], header_padding=lambda n: [Mark(bytes(n - 1))]),
          "truncated"),
]  # fmt: skip

ERRORS = [
    Entry("over-long key", lambda: with_pair(marked(pair("k" * 65536, U8, b"\1"), 0)), "long-key"),
    Entry("bool 2", lambda: with_pair(marked(pair("key", BOOL, b"\2"), 2)), "bool-value"),
    Entry("bool -1 in an array", lambda: with_pair(marked(array("key", BOOL, 3, [b"\0", b"\xff", b"\1"]), 5)),
          "bool-value"),
    Entry("bad UTF-8 in a value", lambda: with_pair(in_value_of(b"caf\xe9")), "bad-utf8"),
    Entry("bad UTF-8 in an array",
          lambda: with_pair(array("key", STRING, 3, [text("x"), u64(2), Mark(b"\xc0\x80"), text("y")])), "bad-utf8"),
    Entry("bad UTF-8 in a key", lambda: with_pair([u64(3), Mark(b"k\xff\xfe"), u32(U8), b"\1"]), "bad-utf8"),
    Entry("bad UTF-8 in a tensor name",
          lambda: with_second([u64(2), Mark(b"b\x80"), *info("", [32, 2], T_Q4_0, 32)[1:]]), "bad-utf8"),
    Entry("array in an array", lambda: nested(2, 0), "nested-array"),
    Entry("arrays four deep", lambda: nested(4, 0), "nested-array"),
    Entry("offsets out of order",
          lambda: gguf(infos=[info("a.weight", [8], T_F32, 64), marked(info("b.weight", [32, 2], T_Q4_0, 0), -1)],
                       data=[B, bytes(28), A]), "offset-order"),
    Entry("empty tensor within another's data",
          lambda: gguf(infos=[[*INFOS[1][:-1], u64(0)], marked(info("e", [8, 0], T_F32, 32), -1)],
                       data=[B, bytes(28)]), "offset-order"),
    Entry("zero dimension with data",
          lambda: with_second(info("b", [32, 0], T_Q4_0, 32), [A, Mark(bytes(64))]), "zero-with-data"),
    Entry("zero dimension with data before another tensor",
          lambda: gguf(infos=[info("e", [0], T_F32, 0), info("a", [8], T_F32, 64)], data=[Mark(bytes(64)), A]),
          "zero-with-data"),
]  # fmt: skip

WARNINGS = [
    Entry("gap between tensors",
          lambda: with_second(info("b", [32, 2], T_Q4_0, 96), [A, Mark(bytes(64)), B, bytes(28)]), "gap"),
    Entry("gap before the first tensor",
          lambda: gguf(infos=[info("a", [8], T_F32, 32)], data=[Mark(bytes(32)), A]), "gap"),
    Entry("final padding missing", lambda: gguf(data=[A, B, Mark(b"")]), "padding-cut"),
    Entry("final padding cut by one byte", lambda: gguf(data=[A, B, Mark(bytes(27))]), "padding-cut"),
    Entry("trailing bytes", lambda: gguf(data=[*DATA, Mark(b"trail")]), "trailing"),
    Entry("trailing bytes without tensors",
          lambda: gguf(infos=[], data=[bytes(-len(gguf(infos=[]).data[: -sum(map(len, DATA))]) % 32), Mark(b"trail")]),
          "trailing"),
    Entry("non-zero padding in the header", lambda: gguf(header_padding=header_padding), "nonzero-padding"),
    Entry("non-zero padding between tensors",
          lambda: gguf(infos=[info("b", [32, 2], T_Q4_0, 0), info("a", [8], T_F32, 64)],
                       data=[B, bytes(8), Mark(b"\x01"), bytes(19), A]), "nonzero-padding"),
    Entry("non-zero final padding", lambda: gguf(data=[A, B, bytes(27), Mark(b"\x80")]), "nonzero-padding"),
    Entry("alignment 4", lambda: aligned(u32(4), alignment=4), "alignment-small"),
    Entry("empty tensor name", lambda: with_second(marked(info("", [32, 2], T_Q4_0, 32), 0)), "empty-tensor-name"),
]  # fmt: skip


# -- accepted in silence ----------------------------------------------------------------------------------------


def every_value_type() -> Built:
    values = [b"\1", b"\xff", b"\1\2", b"\xff\xff", u32(7), u32(-7), struct.pack("<f", 0.5), b"\0", text("текст"), None,
              u64(1 << 63), u64(-1), struct.pack("<d", 1e300)]  # fmt: skip
    pairs = [pair(f"scalar.{i}", i, v) for i, v in enumerate(values) if v is not None]
    pairs += [array(f"array.{i}", i, 2, [v, v]) for i, v in enumerate(values) if v is not None]
    pairs += [array(f"empty.{i}", i, 0, []) for i, v in enumerate(values) if v is not None]
    return gguf(pairs)


GOOD = [
    Entry("two tensors", gguf),
    Entry("zero keys", lambda: gguf([])),
    Entry("zero tensors", lambda: gguf(infos=[], data=[])),
    Entry("zero tensors and zero keys", lambda: gguf([], [], [])),
    Entry("zero tensors, padded header",
          lambda: gguf(infos=[], data=[bytes(-len(gguf(infos=[], data=[]).data) % 32)])),
    Entry("zero dimension", lambda: with_second(info("b", [32, 0], T_Q4_0, 32), [A])),
    Entry("zero row length", lambda: with_second(info("b", [0, 3], T_Q4_0, 32), [A])),
    Entry("zero dimension between tensors",
          lambda: gguf(infos=[INFOS[0], info("e", [0, 5], T_F32, 32), INFOS[1]], data=DATA)),
    Entry("no dimensions", lambda: gguf(infos=[info("s", [], T_F32, 0)], data=[b"\0\0\x80\x3f", bytes(28)])),
    Entry("four dimensions", lambda: with_second(info("b", [32, 2, 1, 1], T_Q4_0, 32))),
    Entry("alignment 8", lambda: aligned(u32(8), alignment=8)),
    Entry("alignment 64", lambda: aligned(u32(64), alignment=64)),
    Entry("alignment 4096", lambda: aligned(u32(4096), alignment=4096)),
    Entry("version 2", lambda: gguf(version=u32(2))),
    Entry("every value type", every_value_type),
    Entry("key of 65535 bytes", lambda: with_pair(pair("k" * 65535, U8, b"\1"))),
    Entry("tensor name of 63 bytes", lambda: with_second(info("n" * 63, [32, 2], T_Q4_0, 32))),
    Entry("names with control characters",
          lambda: gguf([pair("\x1b[31m\u202e", STRING, text("\x1b]0;x\x07"))],
                       [INFOS[0], info("b\x1b[2J", [32, 2], T_Q4_0, 32)])),
]  # fmt: skip

#: Harmless too, yet another reader does not read them as we do; the rules are those of comparing the readers.
DISPUTED = [
    Entry("type newer than gguf-py", lambda: with_second(info("b", [64, 2], T_Q2_0, 32)), "gguf-py-refuses", "warning"),
    Entry("key by which gguf-py names a field", lambda: with_pair(pair("GGUF.version", U32, u32(3))),
          "gguf-py-refuses", "warning"),
    Entry("no dimensions, BF16", lambda: gguf(infos=[info("s", [], T_BF16, 0)], data=[b"\x80\x3f", bytes(30)]),
          "gguf-py-refuses", "warning"),
    Entry("type whose size gguf-py has wrong",
          lambda: gguf(infos=[marked(info("a", [32, 2], T_Q8_1, 0), 0, -1)], data=[bytes(range(72)), bytes(24)]),
          "reader-differs", "error"),
    # One element less than overflows; ggml asserts more than it checked.
    Entry("dimensions 2^62 - 1, 0 and 2", lambda: with_second(info("b", [(1 << 62) - 1, 0, 2], T_I8, 32), [A]),
          "reader-broke", "warning"),
]  # fmt: skip


# -- metadata that lie ------------------------------------------------------------------------------------------


def model(
    kind: int = T_Q4_0, lie: Sequence[bytes] | None = None, tokens: int = 4, layers: Sequence[int] = (0, 1),
    mark_type: bool = False, extra: Sequence[Sequence[bytes]] = (),
) -> Built:  # fmt: skip
    """A llama of two layers with the tensors that claims are held against. `lie` replaces the pair of its key."""
    pairs = {
        "general.architecture": pair("general.architecture", STRING, text("llama")),
        "general.file_type": pair("general.file_type", U32, u32({T_F32: 0, T_Q4_0: 2, T_Q8_0: 7}[kind])),
        "llama.block_count": pair("llama.block_count", U32, u32(2)),
        "llama.embedding_length": pair("llama.embedding_length", U32, u32(64)),
        "llama.feed_forward_length": pair("llama.feed_forward_length", U32, u32(96)),
        "llama.attention.head_count": pair("llama.attention.head_count", U32, u32(4)),
        "llama.attention.head_count_kv": pair("llama.attention.head_count_kv", U32, u32(2)),
        "llama.vocab_size": pair("llama.vocab_size", U32, u32(4)),
        "tokenizer.ggml.tokens": array(
            "tokenizer.ggml.tokens", STRING, tokens, [Mark(text("t") * tokens) if tokens != 4 else text("t") * tokens]
        ),
        "tokenizer.ggml.scores": array("tokenizer.ggml.scores", F32, tokens, [bytes(4 * tokens)]),
    }
    if lie is not None:
        pairs[lie[0][8:].decode()] = list(lie)
    shapes = {"token_embd.weight": (64, 4)}
    for layer in layers:
        shapes |= {f"blk.{layer}.attn_k.weight": (64, 32), f"blk.{layer}.ffn_down.weight": (96, 64)}
    infos, data = [], b""
    for name, (k, n) in shapes.items():
        row = {T_F32: 4 * k, T_Q4_0: k // 32 * Q4_0_BYTES, T_Q8_0: k // 32 * Q8_0_BYTES}[kind]
        infos.append(info(name, [k, n], kind, len(data)))
        data += _weights(kind, row * n) + bytes(-row * n % 32)
    if mark_type:  # of the largest tensor, the first ffn_down
        infos[2] = marked(infos[2], -2)
    return gguf([*pairs.values(), *extra], infos, [data])


def _weights(kind: int, nbytes: int) -> bytes:
    """Random blocks, or values, whose scales and exponents are those of numbers near one."""
    raw = bytearray(random.Random(nbytes).randbytes(nbytes))
    size, at = {T_F32: (4, 3), T_Q4_0: (Q4_0_BYTES, 1), T_Q8_0: (Q8_0_BYTES, 1)}[kind]
    raw[at::size] = b"\x3c" * len(raw[at::size])
    return bytes(raw)


def lie(key: str, value: int) -> Callable[[], Built]:
    return lambda: model(lie=marked(pair(key, U32, u32(value)), 2))


CLAIMS = [
    Entry("file type Q8_0, tensors Q4_0", lie("general.file_type", 7), "file-type", "warning", True),
    Entry("file type unknown", lie("general.file_type", 999), "file-type", "warning", True),
    Entry("file type F32, tensors Q4_0", lie("general.file_type", 0), "file-type", "warning", True),
    Entry("file type of type string",
          lambda: model(lie=marked(pair("general.file_type", STRING, text("Q4_0")), 2)), "key-type", "warning", True),
    Entry("file name Q8_0, tensors Q4_0", lambda: model(mark_type=True), "file-name", "warning", True,
          "tiny-Q8_0.gguf"),
    Entry("one layer too many claimed", lie("llama.block_count", 3), "block-count", "warning", True),
    Entry("one layer too few claimed", lie("llama.block_count", 1), "block-count", "warning", True),
    Entry("a layer missing in the middle",
          lambda: model(layers=(0, 2), lie=marked(pair("llama.block_count", U32, u32(2)), 2)), "block-count",
          "warning", True),
    # 65, not 128: then 4 heads are still of 16 rows each, and the head count stays right.
    Entry("embedding length wrong", lie("llama.embedding_length", 65), "embedding-length", "warning", True),
    Entry("embedding length of type array of strings",
          lambda: model(lie=marked(array("llama.embedding_length", STRING, 1, [text("64")]), 4)), "key-type", "warning",
          True),
    Entry("one token too many", lambda: model(tokens=5), "vocabulary-size", "warning", True),
    Entry("special token outside the vocabulary",
          lambda: model(extra=[marked(pair("tokenizer.ggml.eos_token_id", U32, u32(4)), 2)]), "special-token",
          "warning", True),
    Entry("merge that makes no token",
          lambda: model(extra=[marked(array("tokenizer.ggml.merges", STRING, 1, [text("t t")]), 4)]), "merges",
          "warning", True),
    Entry("epsilon NaN",
          lambda: model(extra=[marked(pair("llama.attention.layer_norm_epsilon", F32, NAN), 2)]),
          "key-not-finite", "error", True),
    Entry("context length 0", lie("llama.context_length", 0), "key-range", "error", True),
    Entry("type of token unknown",
          lambda: model(extra=[marked(array("tokenizer.ggml.token_type", I32, 4, [u32(1) * 3 + u32(7)]), -1)]),
          "token-type", "warning", True),
    Entry("version of quantization unknown",
          lambda: model(extra=[marked(pair("general.quantization_version", U32, u32(99)), 2)]), "key-unknown",
          "warning", True),
    Entry("chat template that does not parse",
          lambda: model(extra=[marked(pair("tokenizer.chat_template", STRING, text("{% if %}{{")), 2)]),
          "chat-template", "warning", True),
    Entry("vocabulary size wrong", lie("llama.vocab_size", 5), "vocabulary-size", "warning", True),
    Entry("scores too short",
          lambda: model(lie=marked(array("tokenizer.ggml.scores", F32, 3, [bytes(12)]), -1)), "vocabulary-size",
          "warning", True),
    Entry("feed-forward length wrong", lie("llama.feed_forward_length", 128), "feed-forward-length", "warning", True),
    Entry("head count wrong", lie("llama.attention.head_count_kv", 4), "head-count", "warning", True),
]  # fmt: skip

TRUE_CLAIMS = [
    Entry("claims that hold", model, claim=True, file_name="tiny-Q4_0.gguf"),
    Entry("claims that hold, F32", lambda: model(T_F32), claim=True, file_name="tiny-f32-00001.gguf"),
    Entry("claims that hold, Q8_0", lambda: model(T_Q8_0), claim=True, file_name="TINY.q8_0.gguf"),
    Entry("digits of another script in the file's name", model, claim=True, file_name="tiny-q\u0664_0.gguf"),
    Entry("rows too short for K-quants",  # llama.cpp falls back to a legacy type
          lambda: model(lie=pair("general.file_type", U32, u32(15))), claim=True, file_name="tiny-Q4_K_M.gguf"),
    Entry("a length for each layer",
          lambda: model(lie=array("llama.feed_forward_length", I32, 2, [u32(96), u32(96)])), claim=True),
    Entry("as many experts as claimed",
          lambda: gguf([pair("general.architecture", STRING, text("llama")), pair("llama.expert_count", U32, u32(2))],
                       [info("blk.0.ffn_up_exps.weight", [4, 1, 2], T_F32, 0)], [A]), claim=True),
    Entry("an adapter makes no claims",
          lambda: model(lie=pair("llama.block_count", U32, u32(9)),
                        extra=[pair("general.type", STRING, text("adapter"))]), claim=True),
]  # fmt: skip


def _with_effect(entries: Sequence[Entry], effect: str) -> list[Entry]:
    return [Entry(e.name, e.build, e.slug, effect, e.claim, e.file_name) for e in entries]


#: Every single-file entry with a finding of the parser.
BAD = _with_effect(REFUSED, "refuse") + _with_effect(ERRORS, "error") + _with_effect(WARNINGS, "warning")
CORPUS = [*BAD, *GOOD, *CLAIMS, *TRUE_CLAIMS]


# -- split models -----------------------------------------------------------------------------------------------


def part(number: int, count: int = 2, total: int = 2, name: str | None = None) -> bytes:
    """A part with one tensor."""
    pairs = [
        pair("split.no", U16, struct.pack("<H", number)), pair("split.count", U16, struct.pack("<H", count)),
        pair("split.tensors.count", I32, u32(total)),
    ]  # fmt: skip
    return gguf(pairs, [info(name or f"blk.{number}.w", [8], T_F32, 0)], [A]).data


ONE, TWO = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
SPLITS = [
    SplitEntry("two parts", {ONE: part(0), TWO: part(1)}, ONE),
    SplitEntry("one part of one", {"m.gguf": part(0, 1, 1)}, "m.gguf"),
    SplitEntry("opened by its second part", {ONE: part(0), TWO: part(1)}, TWO, "split-first", ONE),
    SplitEntry("second part missing", {ONE: part(0)}, ONE, "split-part-missing", TWO),
    SplitEntry("second part truncated", {ONE: part(0), TWO: part(1)[:-1]}, ONE, "data-truncated", TWO),
    SplitEntry("second part numbered wrong", {ONE: part(0), TWO: part(0, name="x")}, ONE, "split-inconsistent", TWO),
    SplitEntry("second part of another count", {ONE: part(0), TWO: part(1, 3)}, ONE, "split-inconsistent", TWO),
    SplitEntry("second part without split keys", {ONE: part(0), TWO: gguf().data}, ONE, "split-inconsistent", TWO),
    SplitEntry("tensor total wrong", {ONE: part(0, total=3), TWO: part(1)}, ONE, "split-inconsistent", ONE),
    SplitEntry("tensor in both parts", {ONE: part(0), TWO: part(1, name="blk.0.w")}, ONE, "duplicate-tensor", TWO),
    SplitEntry("number in digits of another script", {"m-0000\u0661-of-00002.gguf": part(0), TWO: part(1)},
               "m-0000\u0661-of-00002.gguf", "split-inconsistent", "m-0000\u0661-of-00002.gguf"),
    SplitEntry("name without a number", {"m.gguf": part(0)}, "m.gguf", "split-inconsistent", "m.gguf"),
    SplitEntry("65535 parts claimed", {"m-00001-of-65535.gguf": part(0, 65535)}, "m-00001-of-65535.gguf",
               "split-part-missing", "m-00002-of-65535.gguf"),
]  # fmt: skip
