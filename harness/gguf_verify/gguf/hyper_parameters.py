"""Checks of hyper-parameters whose values no model can use: non-finite numbers, an epsilon of 1000, a base of 0.

Every number in the metadata must be finite, and a float of the architecture must be normal or 0. Known hyper-parameters
also have domains, selected by the last parts of their keys, for all architectures. A domain ends where the value has no
meaning for llama.cpp or for float32, not at the values of known models: a factor of 0 means none, a model without
attention has 0 heads, one without experts uses 0. A value that llama.cpp's loader ignores has no domain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..support.partial_import import submodule
from ..support.text import quoted
from .model import Model
from .records import Finding
from .vocabulary import at_key

_gguf = submodule("gguf.constants")

Numbers = npt.NDArray[np.int64 | np.float64]


@dataclass(frozen=True)
class Domain:
    """The meaningful values of a hyper-parameter.

    Args:
        why: what fails outside the domain, judging by llama.cpp's use of the value.
        low, high: the smallest and the largest value.
        open: `low` itself is excluded.
        zero: 0 is also allowed, and means none.
        even: odd numbers are excluded.
        at_most: the key whose value is an upper limit, without the architecture.
        times: factor of that limit.
        divides: the key whose value the values must divide, without the architecture.
    """

    why: str
    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    zero: bool = False
    even: bool = False
    at_most: str | None = None
    times: float = 1
    divides: str | None = None

    def outside(self, values: Numbers) -> npt.NDArray[np.bool_]:
        inside = (values > self.low if self.open else values >= self.low) & (values <= self.high)
        if self.even:
            inside &= values % 2 == 0
        return np.asarray(~(inside | (self.zero & (values == 0))))

    def __str__(self) -> str:
        low = f"more than {self.low:.3g}" if self.open else f"at least {self.low:.3g}"
        bounds = [low] * (self.low > -math.inf) + [f"at most {self.high:.3g}"] * (self.high < math.inf)
        return "0, or " * self.zero + "an even number, " * self.even + " and ".join(bounds)


#: The smallest normal number of float32.
_NORMAL = 2.0**-126
#: The squares of a factor up to this, and of its reciprocal, are normal numbers of float32.
_SQUARE = 2.0**63
#: Numbers near 1 that differ by less than the reciprocal are equal in float32.
_PRECISION = 2.0**24
#: llama.cpp's positions (`llama_pos`) are below this.
_POSITIONS = 2.0**31

_COUNT = Domain("there is at least one", 1)
_SIZE = Domain("it counts something", 0)
_EPSILON = Domain(
    "it is added to the mean square of a row, which is about 1: ggml asserts that it is not negative, "
    "and models have from 1e-12 to 1e-2",
    0,
    0.1,
    open=True,
)
_BASE = Domain(
    "at each position, the rotary embedding turns pair i of n by the power -2i/n of it, and float32 does "
    "not tell the turns of smaller ones apart",
    1 / _PRECISION,
)
_FACTOR = Domain(
    "llama.cpp multiplies or divides by it, and takes 0 for none; other values overflow or vanish in "
    "float32, as norms square",
    1 / _SQUARE,
    _SQUARE,
    zero=True,
)
_SCALING = Domain(
    "the rotary embedding divides positions by it, 0 means none, and with other values float32 does not "
    "tell positions apart",
    1 / _PRECISION,
    _PRECISION * _POSITIONS,
    zero=True,
    at_most="context_length",
    times=_PRECISION,
)
_CAP = Domain(
    "llama.cpp divides by it for tanh and multiplies with it, and takes 0 for none; softmax does not tell "
    "smaller numbers apart",
    1 / _PRECISION,
    1 / _NORMAL,
    zero=True,
)
_CLAMP = Domain("llama.cpp limits values to it, and takes 0 for none", 1 / _SQUARE, zero=True)
_TURNS = Domain("YaRN takes the logarithm of its reciprocal", 0, open=True)
_ROTATED = Domain("ggml turns pairs of a head's values, and 0 means none", 0, even=True, at_most="attention.key_length")
_EXPERTS = Domain("some of the experts are chosen", 0, at_most="expert_count")

#: Domains by the last parts of keys.
_DOMAINS = {
    "context_length": _COUNT, "embedding_length": _COUNT, "block_count": _COUNT, "vocab_size": _COUNT,
    "rope.scaling.factor": _SCALING, "rope.scale_linear": _SCALING, "attention.scale": _FACTOR, "logit_scale": _FACTOR,
    "residual_scale": _FACTOR, "embedding_scale": _FACTOR, "expert_weights_scale": _FACTOR,
    "expert_group_scale": _FACTOR, "attention.output_scale": _FACTOR, "attention.value_scale": _FACTOR,
    "attention.temperature_scale": _FACTOR, "attention.max_alibi_bias": _FACTOR,
    "rope.scaling.yarn_log_multiplier": _FACTOR, "rope.scaling.yarn_attn_factor": _FACTOR,
    "rope.scaling.attn_factor": Domain("llama.cpp multiplies queries and keys by it", 1 / _SQUARE, _SQUARE),
    "rope.scaling.yarn_ext_factor": Domain("it is a share of the angles, and less than 0 means none", high=_PRECISION),
    "rope.scaling.yarn_beta_fast": _TURNS,
    "rope.scaling.yarn_beta_slow": replace(_TURNS, at_most="rope.scaling.yarn_beta_fast"),
    "attn_logit_softcapping": _CAP, "final_logit_softcapping": _CAP, "router_logit_softcapping": _CAP,
    "attention.clamp_kqv": _CLAMP,
    "image_std": Domain("pixels are divided by it", 0, open=True),
    "attention.head_count_kv": Domain("heads share it in equal parts", 0, divides="attention.head_count"),
    "attention.key_length": _COUNT, "attention.value_length": _COUNT,
    "attention.sliding_window": Domain("positions are of 32 bits with a sign", 0, _POSITIONS - 1),
    "rope.dimension_count": _ROTATED,
    "rope.dimension_count_swa": replace(_ROTATED, at_most="attention.key_length_swa"),
    "rope.dimension_sections": Domain("they count pairs", 0),
    "expert_used_count": _EXPERTS,
    "expert_group_count": replace(_EXPERTS, why="each group has as many experts", divides=_EXPERTS.at_most),
    "expert_group_used_count": Domain("some of the groups are chosen", 0, at_most="expert_group_count"),
    "nextn_predict_layers": Domain("they are some of the layers", 0, at_most="block_count"),
    "wkv.head_size": Domain("a row is of whole heads", 1, divides="embedding_length"),
}  # fmt: skip
#: Domains by the last part of a key, for keys that the table does not have.
_KINDS = (
    (re.compile(r"(?:.*_)?epsilon", re.ASCII), _EPSILON),
    (re.compile(r"(?:.*_)?freq_base(?:_swa)?", re.ASCII), _BASE),
    (re.compile(r"(?:.*_)?(?:count|length|size|rank)", re.ASCII), _SIZE),
)
#: Keys that llama.cpp reads by `get_key_or_arr` with `n_layer_all`: one value, or one per layer.
_OF_LAYERS = {
    "feed_forward_length", "expert_feed_forward_length", "attention.head_count", "attention.head_count_kv",
    "expert_used_count", "swiglu_clamp_exp", "swiglu_clamp_shexp", "attention.recurrent_layers",
}  # fmt: skip
_POOLING = (-1, (1 << 32) - 1, *(int(kind) for kind in _gguf.PoolingType))  # -1: LLAMA_POOLING_TYPE_UNSPECIFIED
#: The values of keys that llama.cpp has code for.
_KNOWN: dict[str, tuple[int | str, ...]] = {
    "pooling_type": _POOLING, "classifier.pooling_type": _POOLING,
    "expert_gating_func": tuple(range(5)),  # llama_expert_gating_func_type
    "rope.scaling.type": tuple(kind.value for kind in _gguf.RopeScalingType),
}  # fmt: skip
#: The token types that llama.cpp knows (`llama_token_type`), from LLAMA_TOKEN_TYPE_UNDEFINED to LLAMA_TOKEN_TYPE_BYTE.
_TOKEN_TYPES = Domain("", 0, 6)
#: The types of tokens that llama.cpp writes as text (`token_to_piece`).
_TEXT = tuple(int(getattr(_gguf.TokenType, name)) for name in ("NORMAL", "USER_DEFINED", "BYTE"))
#: Weights of a layer that are split into heads. (A vocoder's `posnet` has one head and no key for it.)
_ATTENTION = {
    "attention.head_count": re.compile(r"blk\.[0-9]+\.attn_(?:q|qkv)\.weight", re.ASCII),
    "attention.head_count_kv": re.compile(r"blk\.[0-9]+\.attn_(?:k|qkv)\.weight", re.ASCII),
}


def check_hyper_parameters(model: Model) -> Iterator[Finding]:
    """Yield findings for keys whose values have no meaning."""
    for key in model.metadata:
        values = _numbers(model, key)
        if values is None:
            continue
        if (bad := ~np.isfinite(values)).any():
            yield at_key("key-not-finite", model, key, "finite numbers", _first(values, bad))
        elif (wrong := _wrong(model, key, values)) is not None:
            yield at_key("key-range", model, key, *wrong)
    yield from _missing_heads_and_experts(model)
    yield from _unknown_values(model)
    yield from _token_types(model)


def why_meaningless(model: Model) -> str | None:
    """Return why the graph of a model computes nothing that can be judged, in one line; None if no key prevents it."""
    wrong = [f for f in check_hyper_parameters(model) if f.severity == "error"]
    if not wrong:
        return None
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"the file's metadata have no meaning: {wrong[0].line()}{more}"


# -- domains ----------------------------------------------------------------------------------------------------


def _wrong(model: Model, key: str, values: Numbers) -> tuple[str, str] | None:
    """Return the expected values of a key, and what was found; None if the values have a meaning."""
    prefix, _, name = key.partition(".")
    if prefix not in (model.architecture, "clip"):
        return None
    of_model = prefix != "clip"
    if of_model and name in _OF_LAYERS and (wrong := _layers_differ(model, key)) is not None:
        return wrong
    domain = None if _ignored(model, name) else _domain_of(name)
    if domain is not None and (bad := domain.outside(values)).any():
        return f"{domain} ({domain.why})", _first(values, bad)
    # A part of the model, such as `vision.`, has its own counts.
    of_model = of_model and name in _DOMAINS
    if domain is not None and of_model and (wrong := _contradiction(model, domain, values)) is not None:
        return wrong
    if (bad := (values != 0) & (np.abs(values) < _NORMAL)).any():
        return f"0, or a normal number of float32 (from {_NORMAL:.3g} up)", _first(values, bad)
    return None


def _layers_differ(model: Model, key: str) -> tuple[str, str] | None:
    """Like `_wrong`, for an array that does not have one value per layer."""
    value, layers = model.metadata[key], model.metadata.get(f"{model.architecture}.block_count")
    if not isinstance(value, np.ndarray) or not isinstance(layers, int) or len(value) == layers:
        return None
    return f"one value, or {layers}, one for each layer", f"an array of {len(value)}"


def _domain_of(name: str) -> Domain | None:
    """Return the domain of a key without its architecture: by the most last parts in the table, or by its last one."""
    parts = name.split(".")
    names = (".".join(parts[first:]) for first in range(len(parts)))
    domain = next((_DOMAINS[name] for name in names if name in _DOMAINS), None)
    return domain or next((domain for kind, domain in _KINDS if kind.fullmatch(parts[-1])), None)


def _ignored(model: Model, name: str) -> bool:
    """Return whether llama.cpp ignores the key because of another one: see `load_hparams` and llama-context.cpp."""
    if name.startswith(("rope.dimension_count", "attention.key_length", "attention.value_length")):
        heads = _quantity(model, "attention.head_count")
        return heads is None or heads[0] == 0
    scaling = model.metadata.get(f"{model.architecture}.rope.scaling.type")
    if name == "rope.scaling.yarn_attn_factor":
        return scaling in ("none", "yarn")
    return scaling == "none" and (name in ("rope.scaling.factor", "rope.scale_linear") or ".yarn_" in name)


def _contradiction(model: Model, domain: Domain, values: Numbers) -> tuple[str, str] | None:
    """Like `_wrong`, for the keys that limit this one: each value is compared with that of its layer."""
    for name, divides in ((domain.at_most, False), (domain.divides, True)):
        other = _quantity(model, name) if name is not None else None
        if other is None or not (1 in (other.size, values.size) or other.size == values.size):
            continue
        several, other = np.broadcast_arrays(values, other)
        bad = other % np.where(several > 0, several, 1) != 0 if divides else several > other * domain.times
        if bad.any():
            limit = other[np.argmax(bad)] * domain.times
            expected = f"a divisor of {limit}" if divides else f"at most {limit:.9g}"
            return f"{expected}, by {name} ({domain.why})", _first(several, bad)
    return None


def _quantity(model: Model, name: str) -> Numbers | None:
    """Return the finite numbers of a key of the architecture; llama.cpp's default for a missing length of keys."""
    values = _numbers(model, f"{model.architecture}.{name}")
    if values is not None:
        return values if np.isfinite(values).all() else None
    if name == "attention.key_length_swa":
        return _quantity(model, "attention.key_length")
    if name == "attention.key_length":
        width, heads = _quantity(model, "embedding_length"), _quantity(model, "attention.head_count")
        return None if width is None or heads is None or heads[0] <= 0 else width[:1] // heads[0]
    return None


def _numbers(model: Model, key: str) -> Numbers | None:
    """Return the numbers of a key as an array; None if it has other values, or is missing."""
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


# -- other checks -----------------------------------------------------------------------------------------------


def _missing_heads_and_experts(model: Model) -> Iterator[Finding]:
    """Yield findings for counts of 0 in a file that has weights of attention, or experts."""
    for name, weights in _ATTENTION.items():
        heads = _quantity(model, name)
        if heads is not None and not heads.any() and any(map(weights.fullmatch, model.tensors)):
            expected = "at least 1, since the file has weights of attention"
            yield at_key("key-range", model, f"{model.architecture}.{name}", expected, "0")
    experts, used = _quantity(model, "expert_count"), _quantity(model, "expert_used_count")
    if experts is not None and used is not None and experts[0] > 1 and not used.any():
        expected = f"at least 1 of the {experts[0]} experts"
        yield at_key("key-range", model, f"{model.architecture}.expert_used_count", expected, "0")


def _unknown_values(model: Model) -> Iterator[Finding]:
    known = {f"{model.architecture}.{name}": values for name, values in _KNOWN.items()}
    if any(tensor.type.block_size > 1 for tensor in model.tensors.values()):
        known["general.quantization_version"] = (_gguf.GGML_QUANT_VERSION,)
    for key, values in known.items():
        value = model.metadata.get(key)
        if isinstance(value, type(values[-1])) and not isinstance(value, bool) and value not in values:
            named = ", ".join(str(value) for value in values if value not in _POOLING[:2])
            found = quoted(value) if isinstance(value, str) else f"{value}"
            yield at_key("key-unknown", model, key, f"one of {named}" if len(values) > 1 else named, found)


def _token_types(model: Model) -> Iterator[Finding]:
    key = "tokenizer.ggml.token_type"
    types = _numbers(model, key)
    if types is None or types.dtype.kind not in "iu":
        return
    if (bad := _TOKEN_TYPES.outside(types)).any():
        yield at_key("token-type", model, key, "types of llama.cpp's, from 0 to 6", _first(types, bad))
    elif not np.isin(types, _TEXT).any():
        expected = "some tokens that are text (types 1, 4 or 6)"
        yield at_key("token-type", model, key, expected, f"none of {types.size:,} tokens")
