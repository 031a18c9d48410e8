"""What tiny random models of any architecture are made of: keys, matrices, norms, and the parts that most have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.llama.library import Llama
from tests.support.graphs import Floats, Maker

WIDTH, HEAD, HEADS, WIDTH_FF = 128, 64, 2, 256
#: Experts, of which each token gets USED.
EXPERTS, USED = 4, 2
RMS, EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"

Value = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[bool]


class Tiny(Maker):
    """Writes a model of width 128 with a vocabulary of bytes. `kind`: of its matrices; `width_kv`: of the keys and of
    the values of a token."""

    def __init__(
        self, llama: Llama, path: Path, architecture: str, kind: str = "F16", *, heads: int = HEADS, kv_heads: int = 1,
        layers: int = 2, width_ff: int = WIDTH_FF, width: int = WIDTH, seed: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(llama, path, architecture, kind, seed, width_ff, layers, width, heads)
        self.architecture, self.layers, self.width, self.width_ff = architecture, layers, width, width_ff
        self.width_q, self.width_kv = heads * HEAD, kv_heads * HEAD
        self.n_vocab = self.byte_tokens()

    def keys(self, values: dict[str, Value]) -> None:
        """Hyper-parameters, named without the architecture."""
        for name, value in values.items():
            key = f"{self.architecture}.{name}"
            if isinstance(value, bool):
                self.writer.add_bool(key, value)
            elif isinstance(value, int):
                self.writer.add_uint32(key, value)
            elif isinstance(value, float):
                self.writer.add_float32(key, value)
            elif isinstance(value, str):
                self.writer.add_string(key, value)
            else:
                self.writer.add_array(key, value)

    def drawn(self, *shape: int, scale: float = 0.1, shift: float = 0.0) -> Floats:
        values: Floats = self.rng.standard_normal(shape, np.float32) * np.float32(scale) + np.float32(shift)
        return values

    def matrices(self, prefix: str, kind: str | None = None, /, **shapes: tuple[int, ...]) -> None:
        """Matrices by name, of the model's kind or another one."""
        before = self.kind
        if kind is not None:
            self.kind = FORMATS.get(kind) or ELEMENTS[kind]
        for name, shape in shapes.items():
            self.matrix(f"{prefix}{name}.weight", *shape)
        self.kind = before

    def norms(self, prefix: str, *names: str, width: int | None = None, bias: bool = False) -> None:
        for name in names:
            self.norm(f"{prefix}{name}", width or self.width, bias)

    def vectors(self, prefix: str, suffix: str = ".weight", /, **shapes: int | tuple[int, ...]) -> None:
        """Float32 values that stay small: biases, interpolations, offsets."""
        for name, shape in shapes.items():
            self.floats(f"{prefix}{name}{suffix}", self.drawn(*((shape,) if isinstance(shape, int) else shape)))

    def halves(self, name: str, *shape: int) -> None:
        """A kernel of a convolution: [outputs, inputs, width], in half precision."""
        self.writer.add_tensor(name, self.drawn(*shape, scale=float(np.prod(shape[1:])) ** -0.5).astype(np.float16))

    def ends(self, tied: bool = False, bias: bool = False) -> None:
        """The embeddings, the last norm and, unless the embeddings serve as it, the output matrix."""
        self.matrices("", token_embd=(self.n_vocab, self.width))
        self.norms("", "output_norm", bias=bias)
        if not tied:
            self.matrices("", output=(self.n_vocab, self.width))

    def attention(self, blk: str, bias: bool = False, joined: bool = False, gated: bool = False) -> None:
        """Matrices of an attention layer; `joined`: queries, keys and values are one; `gated`: queries are double."""
        q, kv, width = self.width_q, self.width_kv, self.width
        rows = {"attn_qkv": q + 2 * kv} if joined else {"attn_q": q * (1 + gated), "attn_k": kv, "attn_v": kv}
        self.matrices(blk, **{name: (n, width) for name, n in rows.items()}, attn_output=(width, q))
        if bias:
            self.vectors(blk, ".bias", **rows, attn_output=width)

    def dense(self, blk: str, gated: bool = True, bias: bool = False) -> None:
        """A feed-forward part."""
        up, width = self.width_ff, self.width
        rows = {"ffn_up": up, "ffn_gate": up} if gated else {"ffn_up": up}
        self.matrices(blk, **{name: (n, width) for name, n in rows.items()}, ffn_down=(width, up))
        if bias:
            self.vectors(blk, ".bias", **rows, ffn_down=width)

    def experts(self, blk: str, width_ff: int, first: str, last: str, bias: bool = False) -> None:
        """Experts of two kinds, the `last` that of ffn_down, and what routes tokens to them."""
        self.matrices(blk, "F32", ffn_gate_inp=(EXPERTS, self.width))
        up = (EXPERTS, width_ff, self.width)
        self.matrices(blk, first, ffn_gate_exps=up, ffn_up_exps=up)
        self.matrices(blk, last, ffn_down_exps=(EXPERTS, self.width, width_ff))
        if bias:
            rows = {"ffn_gate_inp": (EXPERTS,), "ffn_gate_exps": up[:2], "ffn_up_exps": up[:2]}
            self.vectors(blk, ".bias", **rows, ffn_down_exps=(EXPERTS, self.width))

    def shared_expert(self, blk: str, width_ff: int) -> None:
        """An expert that every token gets."""
        up, down = (width_ff, self.width), (self.width, width_ff)
        self.matrices(blk, ffn_gate_shexp=up, ffn_up_shexp=up, ffn_down_shexp=down)

    def written(self, path: Path) -> Path:
        self.close()
        return path
