"""Random good files are read without a finding, as gguf-py reads them.

The fuzz targets `gguf` and `split-model` (tests/fuzz) are files with lies in their fields and with damaged bytes.

The examples are always the same. Others: FUZZ_EXAMPLES=100000 pytest tests/unit/gguf/test_good_files.py
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gguf_verify.formats.tensor_types import tensor_type
from gguf_verify.gguf.rules import RULES
from tests.support import corpus
from tests.support.corpus import ARRAY, BOOL, STRING, U32, text, u32, u64
from tests.support.invariants import check_file, check_model
from tests.unit.gguf.gguf_py import assert_gguf_py_agrees

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
KEYS = (
    "general.architecture", "general.file_type", "general.type", "general.name", "llama.block_count",
    "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
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
LAYOUTS = {number: layout for number, layout in enumerate("BbHhIif?  Qqd") if layout != " "}

texts = st.text(max_size=8) | st.sampled_from(("llama", "model", "adapter", "\0", "\x1b[31m", "\u202e", "a" * 70))
# a NUL or 64 bytes in a name end the reading
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@st.composite
def scalars(draw: st.DrawFn, kind: int) -> bytes:
    if kind == STRING:
        return text(draw(texts))
    if kind == BOOL:
        return bytes([draw(st.integers(0, 1))])
    size = struct.calcsize(LAYOUTS[kind])
    small = st.integers(0, 5).map(lambda n: n.to_bytes(size, "little"))
    return draw(small | st.binary(min_size=size, max_size=size))


@st.composite
def arrays(draw: st.DrawFn, depth: int = 0) -> bytes:
    kinds = st.sampled_from([*LAYOUTS, STRING, STRING])
    kind = draw(kinds | st.just(ARRAY)) if depth < 5 else draw(kinds)
    if kind == ARRAY:
        elements = draw(st.lists(arrays(depth + 1), max_size=2))
    else:
        elements = draw(st.lists(scalars(kind), max_size=4)) * draw(st.sampled_from((1, 1, 1, 1, 30)))
    return u32(kind) + u64(len(elements)) + b"".join(elements)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A key, and its pair."""
    key = draw(st.sampled_from(KEYS) | names)
    nested = draw(st.integers(0, 9)) == 0
    kind = draw(st.sampled_from([*LAYOUTS, STRING, U32, U32, STRING, ARRAY, ARRAY]))
    value = draw(arrays(0 if nested else 5)) if kind == ARRAY else draw(scalars(kind))
    if key == "general.architecture":
        kind, value = STRING, text("llama")
    return key, corpus.pair(key, kind, value)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A good file, apart from names that may be odd."""
    alignment = draw(st.sampled_from((None, None, 8, 32, 64, 4, 1)))
    metadata = dict(draw(st.lists(pairs(), max_size=5)))
    if alignment is not None:
        metadata["general.alignment"] = corpus.pair("general.alignment", U32, u32(alignment))
    alignment = alignment or 32
    infos, data, offset = [], [], 0
    for name in draw(st.lists(st.sampled_from(NAMES) | names, max_size=4, unique=True)):
        kind = tensor_type(draw(st.sampled_from(TYPES)))
        assert kind is not None
        shape = draw(st.lists(st.sampled_from((0, 1, 1, 2, 2, 3, 4)), max_size=4))
        if shape:
            shape[0] *= kind.block_size
        elif kind.block_size > 1:
            shape = [kind.block_size]
        size = int(np.prod(shape, dtype=np.int64)) // kind.block_size * kind.block_bytes
        infos.append(corpus.info(name, shape, kind.type_id, offset))
        data.append(bytes(i % 251 for i in range(size)) + bytes(-size % alignment))
        offset += len(data[-1])
    version = u32(draw(st.sampled_from((3, 3, 2))))
    return corpus.gguf([*metadata.values()], infos, data, version=version, alignment=alignment).data


@given(data=files())
@settings(
    max_examples=EXAMPLES or 150, derandomize=not EXAMPLES, database=None, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_good_files(tmp_path: Path, data: bytes) -> None:
    """The only findings are those that such a file may have: a name with NUL or too long, deep arrays."""
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(data)
    file = check_file(path)
    odd = {RULES[slug].id for slug in ("nul-in-name", "long-tensor-name", "nested-too-deep", "nested-array", "bad-utf8",
                                       "empty-tensor-name", "alignment-small")}  # fmt: skip
    assert {f.id for f in file.findings} <= odd
    check_model(path)
    if not file.findings:
        event(f"gguf-py: {assert_gguf_py_agrees(path) or 'agrees'}")
