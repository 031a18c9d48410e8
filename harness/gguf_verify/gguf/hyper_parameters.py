"""Values of keys with which no model can be computed: numbers that are not finite, an epsilon of 1000, a base of 0.

Every number of the metadata must be finite. Well-known hyper-parameters also have ranges, by the last parts of their
keys, for all architectures. A range ends where the value has no meaning for llama.cpp, not where known models end: a
factor of 0 means none, a model without attention has 0 heads, one without experts uses 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .model import Model
from .records import Finding
from .vocabulary import at_key

Numbers = npt.NDArray[np.int64 | np.float64]


@dataclass(frozen=True)
class Admissible:
    """The values of a hyper-parameter that have a meaning.

    Args:
        low, high: the smallest and largest ones.
        open: `low` is none of them.
        why: what does not work beyond.
    """

    low: float
    high: float = math.inf
    open: bool = False
    why: str = ""

    def outside(self, values: Numbers) -> npt.NDArray[np.bool_]:
        inside = (values > self.low if self.open else values >= self.low) & (values <= self.high)
        return np.asarray(~inside)

    def __str__(self) -> str:
        low = f"more than {self.low:g}" if self.open else f"at least {self.low:g}"
        return low if self.high == math.inf else f"{low} and at most {self.high:g}"


_COUNT = Admissible(1, why="a model has at least one")
_EPSILON = Admissible(0, 0.1, open=True, why="it is added to the mean square of a row, which is about 1: ggml asserts "
                      "that it is not negative, and models have from 1e-12 to 1e-2")  # fmt: skip
_BASE = Admissible(0, open=True, why="llama.cpp raises it to the power -2/n for the angles of the rotary embedding")
#: llama.cpp takes 0 for none of these.
_FACTOR = Admissible(0, why="llama.cpp multiplies or divides by it, and takes 0 for none")

#: The last parts of keys.
_RANGES = {
    "context_length": _COUNT, "embedding_length": _COUNT, "block_count": _COUNT, "vocab_size": _COUNT,
    "epsilon": _EPSILON, "layer_norm_epsilon": _EPSILON, "layer_norm_rms_epsilon": _EPSILON,
    "group_norm_epsilon": _EPSILON,
    "rope.freq_base": _BASE, "rope.freq_base_swa": _BASE,
    "rope.scaling.factor": _FACTOR, "rope.scale_linear": _FACTOR, "attention.scale": _FACTOR, "logit_scale": _FACTOR,
    "residual_scale": _FACTOR, "embedding_scale": _FACTOR, "expert_weights_scale": _FACTOR,
    "attn_logit_softcapping": _FACTOR, "final_logit_softcapping": _FACTOR, "router_logit_softcapping": _FACTOR,
    "attention.clamp_kqv": _FACTOR, "attention.max_alibi_bias": _FACTOR,
    "rope.scaling.attn_factor": Admissible(0, open=True, why="llama.cpp multiplies queries and keys by it"),
    "image_std": Admissible(0, open=True, why="pixels are divided by it"),
}  # fmt: skip
#: Types of tokens that llama.cpp knows (`llama_token_type`), from LLAMA_TOKEN_TYPE_UNDEFINED to LLAMA_TOKEN_TYPE_BYTE.
_TOKEN_TYPES = Admissible(0, 6)
#: Weights of a layer that are split into heads. (A vocoder's `posnet` has one head and no key of it.)
_ATTENTION = re.compile(r"blk\.[0-9]+\.attn_(?:q|qkv)\.weight", re.ASCII)


def check_hyper_parameters(model: Model) -> Iterator[Finding]:
    """Findings of keys whose values have no meaning."""
    for key in model.metadata:
        values = _numbers(model, key)
        if values is None:
            continue
        if (bad := ~np.isfinite(values)).any():
            yield at_key("key-not-finite", model, key, "finite numbers", _first(values, bad))
        elif (allowed := _range_of(model, key)) is not None and (bad := allowed.outside(values)).any():
            yield at_key("key-range", model, key, f"{allowed} ({allowed.why})", _first(values, bad))
    yield from _token_types(model)
    yield from _counts(model)


def why_meaningless(model: Model) -> str | None:
    """Why the graph of a model computes nothing that can be judged, in a line; None where no key forbids it."""
    wrong = [f for f in check_hyper_parameters(model) if f.severity == "error"]
    if not wrong:
        return None
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"the file's metadata have no meaning: {wrong[0].line()}{more}"


def _range_of(model: Model, key: str) -> Admissible | None:
    """The range of a key of the architecture or of a projector, by as many of its last parts as a name has."""
    parts = key.split(".")
    if parts[0] not in (model.architecture, "clip"):
        return None
    names = (".".join(parts[first:]) for first in range(1, len(parts)))
    return next((_RANGES[name] for name in names if name in _RANGES), None)


def _numbers(model: Model, key: str) -> Numbers | None:
    """The numbers of a key, in an array; None where it has others, or none."""
    value = model.metadata.get(key)
    if isinstance(value, np.ndarray):
        return value.reshape(-1) if value.dtype.kind in "iuf" and value.size else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return np.array([value])


def _first(values: Numbers, bad: npt.NDArray[np.bool_]) -> str:
    at = int(np.argmax(bad))
    several = f" at element {at}" if values.size > 1 else ""
    more = f" (and {int(bad.sum()) - 1:,} more)" if bad.sum() > 1 else ""
    return f"{values[at]:.9g}{several}{more}"


def _token_types(model: Model) -> Iterator[Finding]:
    key = "tokenizer.ggml.token_type"
    types = _numbers(model, key)
    if types is not None and types.dtype.kind in "iu" and (bad := _TOKEN_TYPES.outside(types)).any():
        yield at_key("token-type", model, key, "types of llama.cpp's, from 0 to 6", _first(types, bad))


def _counts(model: Model) -> Iterator[Finding]:
    """Counts that have no meaning beside each other, or beside the tensors."""
    prefix = model.architecture

    def numbers(name: str) -> Numbers | None:
        values = _numbers(model, f"{prefix}.{name}")
        return None if values is None or values.dtype.kind not in "iu" else values

    heads, key_value = numbers("attention.head_count"), numbers("attention.head_count_kv")
    key = f"{prefix}.attention.head_count"
    attends = any(_ATTENTION.fullmatch(name) for name in model.tensors)
    if heads is not None and not heads.any() and attends:
        yield at_key("key-range", model, key, "at least 1, since the file has weights of attention", "0")
    elif heads is not None and key_value is not None and (heads.size == 1 or key_value.size in (1, heads.size)):
        whole = np.where(key_value > 0, key_value, 1)
        if (bad := (heads % whole != 0) & (heads > 0)).any():
            several = np.broadcast_to(heads, bad.shape)
            shared = int(np.broadcast_to(key_value, bad.shape)[np.argmax(bad)])
            expected = f"a multiple of the {shared} heads of keys and values, each of which some heads share"
            yield at_key("key-range", model, key, expected, _first(several, bad))
    experts, used = numbers("expert_count"), numbers("expert_used_count")
    if experts is not None and used is not None and experts.size == 1 and (bad := used > experts).any():
        expected = f"at most {int(experts[0])}, the number of experts"
        yield at_key("key-range", model, f"{prefix}.expert_used_count", expected, _first(used, bad))


__all__ = ["check_hyper_parameters", "why_meaningless"]
