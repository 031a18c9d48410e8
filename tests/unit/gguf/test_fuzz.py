"""Generated files: good ones, and files with lies in their fields or damaged bytes. Every invariant must hold.

The examples are always the same, and more of them in `make test-all`. Others: FUZZ_EXAMPLES=100000 pytest
tests/unit/gguf/test_fuzz.py
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gguf_verify.formats import tensor_type
from gguf_verify.gguf.rules import RULES
from tests.support import corpus
from tests.support.corpus import ARRAY, BOOL, STRING, U32, u32, u64
from tests.support.invariants import check_file, check_model
from tests.unit.gguf.gguf_py import assert_gguf_py_agrees

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def profile(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples, derandomize=not EXAMPLES, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


# -- files as lists of fields -----------------------------------------------------------------------------------


class Field(NamedTuple):
    """Bytes of one meaning. Only numbers can be lied in, yet everything can be moved, dropped, doubled."""

    kind: str
    data: bytes


Fields = list[Field]

KEYS = (
    "general.alignment", "general.architecture", "general.file_type", "general.type", "general.name",
    "llama.block_count", "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
    "llama.attention.head_count_kv", "llama.attention.key_length", "llama.vocab_size", "llama.expert_count",
    "llama.nextn_predict_layers", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
    "split.no", "split.count", "split.tensors.count",
)  # fmt: skip
NAMES = (
    "token_embd.weight", "output.weight", "blk.0.attn_k.weight", "blk.1.attn_k.weight", "blk.0.ffn_down.weight",
    "blk.999999999.ffn_down.weight", "blk.0.ffn_up_exps.weight", "enc.blk.0.x", "blk..x", "",
)  # fmt: skip
#: Types whose tensors are made with whole blocks, F32 often.
TYPES = (0, 0, 0, 1, 2, 3, 6, 7, 8, 10, 14, 24, 26, 28, 30, 34, 42)
#: What a length, a count, an offset or a type may lie.
LIES = (
    *(0, -1) * 4, *range(1, 10), 12, 13, 16, 31, 32, 33, 64, 65, 255, 256, 65535, 65536, (1 << 30) - 1, 1 << 30,
    1 << 31, 1 << 32, (1 << 61) + 1, 1 << 62, (1 << 63) - 1, 1 << 63, -32,
)  # fmt: skip

LAYOUTS = {number: layout for number, layout in enumerate("BbHhIif?  Qqd") if layout != " "}
texts = st.text(max_size=8) | st.sampled_from(("llama", "model", "adapter", "\0", "\x1b[31m", "\u202e", "a" * 70))
raw_texts = texts.map(str.encode)
# A NUL or 64 bytes in a name end the reading.
raw_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8).map(str.encode)


def string(raw: bytes) -> Fields:
    return [Field("length", u64(len(raw))), Field("text", raw)]


@st.composite
def scalars(draw: st.DrawFn, kind: int) -> Fields:
    if kind == STRING:
        return string(draw(raw_texts))
    if kind == BOOL:
        return [Field("bool", bytes([draw(st.integers(0, 1))]))]
    size = struct.calcsize(LAYOUTS[kind])
    small = st.integers(0, 5).map(lambda n: n.to_bytes(size, "little"))
    return [Field("number", draw(small | st.binary(min_size=size, max_size=size)))]


@st.composite
def arrays(draw: st.DrawFn, depth: int = 0) -> Fields:
    kinds = st.sampled_from([*LAYOUTS, STRING, STRING])
    kind = draw(kinds | st.just(ARRAY)) if depth < 5 else draw(kinds)
    if kind == ARRAY:
        elements = draw(st.lists(arrays(depth + 1), max_size=2))
    else:
        elements = draw(st.lists(scalars(kind), max_size=4)) * draw(st.sampled_from((1, 1, 1, 1, 30)))
    head = [Field("type", u32(kind)), Field("count", u64(len(elements)))]
    return [*head, *(field for element in elements for field in element)]


@st.composite
def pairs(draw: st.DrawFn) -> Fields:
    key = draw(st.sampled_from(KEYS).map(str.encode) | raw_names)
    nested = draw(st.integers(0, 9)) == 0
    kind = draw(st.sampled_from([*LAYOUTS, STRING, U32, U32, STRING, ARRAY, ARRAY]))
    value = draw(arrays(0 if nested else 5)) if kind == ARRAY else draw(scalars(kind))
    if key == b"general.architecture":
        kind, value = STRING, string(b"llama")
    return [*string(key), Field("type", u32(kind)), *value]


@st.composite
def files(draw: st.DrawFn) -> Fields:
    """A right file, apart from names that may be odd: fields in order."""
    alignment = draw(st.sampled_from((None, None, 8, 32, 64, 4, 1)))
    metadata = {bytes(p[1].data): p for p in draw(st.lists(pairs(), max_size=5))}
    metadata.pop(b"general.alignment", None)
    if alignment is not None:
        metadata[b"general.alignment"] = [
            *string(b"general.alignment"), Field("type", u32(U32)), Field("number", u32(alignment)),
        ]  # fmt: skip
    alignment = alignment or 32
    names = draw(st.lists(st.sampled_from(NAMES).map(str.encode) | raw_names, max_size=4, unique=True))
    infos: Fields = []
    data: Fields = []
    offset = 0
    for name in names:
        kind = tensor_type(draw(st.sampled_from(TYPES)))
        assert kind is not None
        shape = draw(st.lists(st.sampled_from((0, 1, 1, 2, 2, 3, 4)), max_size=4))
        if shape:
            shape[0] *= kind.block_size
        elif kind.block_size > 1:
            shape = [kind.block_size]
        size = int(np.prod(shape, dtype=np.int64)) // kind.block_size * kind.block_bytes
        padding = -size % alignment
        infos += [*string(name), Field("count", u32(len(shape))), *(Field("dimension", u64(n)) for n in shape)]
        infos += [Field("type", u32(kind.type_id)), Field("offset", u64(offset))]
        data += [Field("data", bytes(i % 251 for i in range(size))), Field("padding", bytes(padding))]
        offset += size + padding
    head = [
        Field("magic", b"GGUF"), Field("version", u32(draw(st.sampled_from((3, 3, 2))))),
        Field("count", u64(len(names))), Field("count", u64(len(metadata))),
    ]  # fmt: skip
    header = [*head, *(field for pair in metadata.values() for field in pair), *infos]
    gap = -sum(len(f.data) for f in header) % alignment
    return [*header, Field("padding", bytes(gap if names else 0)), *data]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A file with one to four lies, losses, copies, exchanges, or strange fields, and sometimes wrong bytes."""
    fields = draw(files())
    for _ in range(draw(st.integers(1, 4))):
        # Of the header only the counts: a wrong magic or version ends the reading, and damaged files have those.
        first = draw(st.sampled_from((2, 4, 4, 4)))
        if first >= len(fields):
            continue
        at = draw(st.sampled_from(range(first, len(fields))))
        numbers = [i for i in range(first, len(fields)) if fields[i].kind not in ("text", "data", "padding")]
        how = draw(st.sampled_from((*("lie", "near") * 3, "drop", "double", "swap", "splice", "garble", "bytes")))
        if how in ("lie", "near") and numbers:
            at = draw(st.sampled_from(numbers))
            size = len(fields[at].data)
            value = draw(st.sampled_from(LIES))
            if how == "near":
                value = int.from_bytes(fields[at].data, "little") + draw(st.sampled_from((-32, -8, -1, 1, 8, 32, 64)))
            fields[at] = Field(fields[at].kind, (value % (1 << 8 * size)).to_bytes(size, "little"))
        elif how == "drop":
            del fields[at]
        elif how == "double":
            fields.insert(at, fields[at])
        elif how == "swap":
            other = draw(st.sampled_from(range(first, len(fields))))
            fields[at], fields[other] = fields[other], fields[at]
        elif how == "garble":
            size = len(fields[at].data)
            fields[at] = Field(fields[at].kind, draw(st.binary(min_size=size, max_size=size)))
        elif how == "splice":
            strange = draw(files())
            start = draw(st.integers(0, len(strange)))
            fields[at:at] = strange[start : draw(st.integers(start, len(strange)))]
        else:
            fields[at] = Field(fields[at].kind, draw(st.binary(max_size=12)))
    data = b"".join(field.data for field in fields)
    return draw(damaged(data)) if draw(st.integers(0, 3)) == 3 else data


@st.composite
def damaged(draw: st.DrawFn, data: bytes, most: int = 2) -> bytes:
    """`data` with a few bytes wrong, lost or added, cut, or followed by more."""
    for _ in range(draw(st.integers(1, most))):
        # Most of them behind the header's 24 bytes, in which few changes lead anywhere.
        first = draw(st.sampled_from((0, 24, 24, 24)))
        at = draw(st.sampled_from(range(min(first, len(data)), len(data) + 1)))
        match draw(st.sampled_from(("set", "insert", "remove", "cut", "trim", "append"))):
            case "set":
                new = draw(st.binary(min_size=1, max_size=8))
                data = data[:at] + new + data[at + len(new) :]
            case "insert":
                data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]
            case "remove":
                data = data[:at] + data[at + draw(st.integers(1, 32)) :]
            case "cut":
                data = data[:at]
            case "trim":
                data = data[: -draw(st.sampled_from((1, 1, 2, 7, 8, 28, 29, 32, 36)))]
            case _:
                data += draw(st.binary(max_size=64) | st.integers(1, 64).map(bytes))
    return data


#: Corpus entries that are small enough to be damaged often.
SEEDS = [data for data in (entry.build().data for entry in corpus.CORPUS) if len(data) < 4096]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def save(folder: Path, data: bytes, name: str = "fuzzed.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# -- the tests --------------------------------------------------------------------------------------------------


lies = given(data=mutants(), name=st.sampled_from(("fuzzed.gguf", "tiny-Q8_0.gguf", "x-IQ4_NL-00001-of-00001.gguf")))
damages = given(data=st.sampled_from(SEEDS).flatmap(lambda seed: damaged(seed, 4)))


@lies
@profile(120)
def test_files_with_lies(folder: Path, data: bytes, name: str) -> None:
    check_any_file(folder, data, name)


@lies
@profile(600)
def test_more_files_with_lies(folder: Path, data: bytes, name: str) -> None:
    check_any_file(folder, data, name)


@damages
@profile(250)
def test_damaged_corpus(folder: Path, data: bytes) -> None:
    check_any_file(folder, data)


@damages
@profile(500)
def test_more_of_the_corpus_damaged(folder: Path, data: bytes) -> None:
    check_any_file(folder, data)


def check_any_file(folder: Path, data: bytes, name: str = "fuzzed.gguf") -> None:
    path = save(folder, data, name)
    file = check_file(path)
    check_model(path)
    event(file.refused.id if file.refused else f"read, {len(file.findings)} findings")
    if not file.findings:
        event(f"gguf-py: {assert_gguf_py_agrees(path) or 'agrees'}")


@given(data=files())
@profile(150)
def test_right_files(folder: Path, data: Fields) -> None:
    """Nothing is refused but what a right file of this kind may have: a name with NUL or too long, deep arrays."""
    path = save(folder, b"".join(field.data for field in data))
    file = check_file(path)
    odd = {RULES[slug].id for slug in ("nul-in-name", "long-tensor-name", "nested-too-deep", "nested-array", "bad-utf8",
                                       "empty-tensor-name", "alignment-small")}  # fmt: skip
    assert {f.id for f in file.findings} <= odd
    check_model(path)
    if not file.findings:
        event(f"gguf-py: {assert_gguf_py_agrees(path) or 'agrees'}")


@given(one=mutants(), two=mutants() | files().map(lambda fields: b"".join(field.data for field in fields)))
@profile(80)
def test_split_models(folder: Path, one: bytes, two: bytes) -> None:
    save(folder, two, corpus.TWO)
    check_model(save(folder, one, corpus.ONE))
