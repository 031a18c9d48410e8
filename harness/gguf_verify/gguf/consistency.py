"""Consistency checks: whether a model's metadata and file name agree with its tensors.

Every finding of `_Checks` is a warning: the bytes are well defined, but the metadata describe them wrongly. A check
that does not hold for every architecture names the architectures for which it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..formats.tensor_types import FORMATS
from ..support.partial_import import submodule
from ..support.text import printable
from .chat_templates import check_chat_templates
from .file import Tensor
from .hyper_parameters import check_hyper_parameters
from .model import PART_NAME, Model
from .records import Finding, Range, finding
from .storage import Strings
from .vocabulary import at_key, check_vocabulary

_gguf = submodule("gguf.constants")

#: Quantization recipes that are not named after their main type (llama.cpp's `llama_ftype_get_default_type`), with the
#: types that their files contain.
RECIPES = {
    recipe: tuple(name for name, fmt in FORMATS.items() if recipe in fmt.recipes)
    for recipe in sorted({recipe for fmt in FORMATS.values() for recipe in fmt.recipes})
}

#: A recipe's name between separators in a file name.
NAMED = re.compile(
    r"(?<![a-z0-9])(bf16|f16|f32|fp16|fp32|mxfp4(?:_moe)?|nvfp4|tq[12]_0|q\d_[01]|q\d_k(?:_(?:s|m|l|xl))?"
    r"|iq\d_(?:xxs|xs|nl|s|m|l))(?![a-z0-9])",
    re.IGNORECASE | re.ASCII,
)

#: Architectures whose attn_k has head_count_kv heads of key_length rows each.
PLAIN_ATTENTION = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")

BLOCK = re.compile(r"blk\.([0-9]{1,9})\.")
GUESSED = int(_gguf.LlamaFileType.GUESSED)


def check_consistency(model: Model) -> tuple[Finding, ...]:
    """Return findings for metadata that are invalid or contradict the tensors or the vocabulary.

    In a file that says that it is not a model (e.g. an adapter), only the values of its keys are checked; in one
    without tensors, also the vocabulary and the chat templates.
    """
    values = tuple(check_hyper_parameters(model))
    kind = model.metadata.get("general.type")
    if isinstance(kind, str) and kind != "model":
        return values
    claims = _Checks(model).check() if model.tensors else ()
    return (*values, *check_vocabulary(model), *check_chat_templates(model), *claims)


class _Checks:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.tensors: Mapping[str, Tensor] = model.tensors
        self.architecture = model.architecture
        self.types = {t.type.name for t in model.tensors.values()}
        self.rows = {t.k for t in model.tensors.values() if len(t.shape) > 1}

    def check(self) -> Iterator[Finding]:
        yield from self.file_type()
        yield from self.file_name()
        if self.architecture is None:
            return
        yield from self.block_count()
        yield from self.embedding_length()
        yield from self.vocabulary_size()
        yield from self.feed_forward_length()
        yield from self.head_count()
        yield from self.expert_count()

    # -- reading keys -------------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def at_key(self, slug: str, key: str, expected: str, found: str) -> Finding:
        return at_key(slug, self.model, key, expected, found)

    def at_tensor(self, slug: str, tensor: Tensor, at: Range, expected: str, found: str) -> Finding:
        return replace(finding(slug, at.start, at.stop, expected, found, tensor.name), part=tensor.part)

    def integer(self, key: str) -> tuple[int | None, list[Finding]]:
        """Return the integer value of a key, and findings.

        The value is None if the key is missing or has one value per layer, or if its type is wrong, which is a finding.
        """
        value = self.model.metadata.get(key)
        if value is None or isinstance(value, (np.ndarray, list)):
            return None, []
        if isinstance(value, int) and not isinstance(value, bool):
            return value, []
        kind = {"memoryview": "str", "Strings": "list of strings"}.get(name := type(value).__name__, name)
        return None, [self.at_key("key-type", key, "an integer", f"a {kind}")]

    def of_layer(self, key: str, layer: int) -> int | None:
        """Return a key's value for one layer: the key holds one integer for all layers, or one per layer."""
        value = self.model.metadata.get(key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            return int(value[layer]) if layer < len(value) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    # -- quantization -------------------------------------------------------------------------------------------

    def present(self, recipes: Sequence[str]) -> bool:
        """Return whether this file can have been made by one of the recipes.

        If no row is a multiple of a recipe's blocks, llama.cpp falls back to other types, so the recipe can be right
        without a tensor of its type.
        """
        for recipe in recipes:
            for main in RECIPES.get(recipe, (_main_type(recipe),)):
                if main in self.types:
                    return True
                kind = _gguf.GGMLQuantizationType.__members__.get(main)
                block = _gguf.GGML_QUANT_SIZES[kind][0] if kind is not None else 1
                if block > 1 and not any(k % block == 0 for k in self.rows):
                    return True
        return False

    def holds(self) -> str:
        return "tensors of " + ", ".join(sorted(self.types))

    def file_type(self) -> Iterator[Finding]:
        key = "general.file_type"
        number, wrong = self.integer(key)
        yield from wrong
        if number is None:
            return
        try:
            name = _gguf.LlamaFileType(number & ~GUESSED).name
        except ValueError:
            yield self.at_key("file-type", key, f"a known file type, for {self.holds()}", f"{number}")
            return
        recipe = re.sub("^(ALL|MOSTLY)_", "", name)
        only = name.startswith("ALL_")
        if not self.present([recipe]) or (only and self.types != {recipe}):
            yield self.at_key("file-type", key, f"the type of the {self.holds()}", f"{number} ({name})")

    def file_name(self) -> Iterator[Finding]:
        name = self.model.path.name
        part = PART_NAME.fullmatch(name)
        stem = part["prefix"] if part else self.model.path.stem
        # fp16 and fp32 are other spellings of f16 and f32.
        named = [found.upper().replace("FP16", "F16").replace("FP32", "F32") for found in NAMED.findall(stem)]
        recipes = list(dict.fromkeys(named))  # each once
        if recipes and not self.present(recipes):
            largest = max(self.tensors.values(), key=lambda t: t.nbytes)
            yield self.at_tensor(
                "file-name",
                largest,
                largest.described[2],
                f"a tensor of {' or '.join(recipes)}, as the file name {printable(name, 120)} says",
                self.holds(),
            )

    # -- counts and dimensions ----------------------------------------------------------------------------------

    def block_count(self) -> Iterator[Finding]:
        key = self.key("block_count")
        count, wrong = self.integer(key)
        yield from wrong
        numbers = {int(m[1]) for m in map(BLOCK.match, self.tensors) if m}
        # Without a token embedding the file is a part of a model, e.g. a projector, with its own numbering.
        if count is None or "token_embd.weight" not in self.tensors:
            return
        # Layers that only predict further tokens come last, and some files omit them.
        spare = self.of_layer(self.key("nextn_predict_layers"), 0) or 0
        if not numbers and any(".blk." in name for name in self.tensors):
            return  # encoder and decoder number their layers separately
        missing = next((n for n in range(len(numbers) + 1) if n not in numbers), 0)
        if len(numbers) == missing and count - max(spare, 0) <= missing <= count:
            return
        found = f"layers 0 to {missing - 1}" if missing else "none"
        beyond = f" and then {len(numbers) - missing} not in sequence" if len(numbers) > missing else ""
        yield self.at_key("block-count", key, f"the number of layers that the file holds ({found}{beyond})", f"{count}")

    def embedding_length(self) -> Iterator[Finding]:
        key = self.key("embedding_length")
        length, wrong = self.integer(key)
        yield from wrong
        embedding = self.tensors.get("token_embd.weight")
        if length is not None and embedding is not None and embedding.k != length:
            yield self.at_key(
                "embedding-length", key, f"{embedding.k}, the row length of token_embd.weight", f"{length}"
            )

    def vocabulary_size(self) -> Iterator[Finding]:
        embedding = self.tensors.get("token_embd.weight")
        rows = embedding.n_rows if embedding else None
        tokens = self.model.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Strings):
            if rows is not None and len(tokens) != rows:
                yield self.at_key(
                    "vocabulary-size",
                    "tokenizer.ggml.tokens",
                    f"{rows} tokens, the rows of token_embd.weight",
                    f"{len(tokens)}",
                )
            for name in ("scores", "token_type"):
                values = self.model.metadata.get(f"tokenizer.ggml.{name}")
                if isinstance(values, np.ndarray) and len(values) != len(tokens):
                    yield self.at_key(
                        "vocabulary-size",
                        f"tokenizer.ggml.{name}",
                        f"{len(tokens)} values, one a token",
                        f"{len(values)}",
                    )
        size, wrong = self.integer(self.key("vocab_size"))
        yield from wrong
        if size is not None and rows is not None and size != rows:
            yield self.at_key(
                "vocabulary-size", self.key("vocab_size"), f"{rows}, the rows of token_embd.weight", f"{size}"
            )

    def feed_forward_length(self) -> Iterator[Finding]:
        key = self.key("feed_forward_length")
        _, wrong = self.integer(key)
        yield from wrong
        # In a mixture of experts, each architecture has its own rule for dense layers.
        if self.of_layer(self.key("expert_count"), 0):
            return
        for layer, tensor in self.layers("ffn_down"):
            length = self.of_layer(key, layer)
            if length is not None and tensor.k != length:
                yield self.at_key(
                    "feed-forward-length",
                    key,
                    f"{tensor.k}, the row length of {tensor.name}",
                    f"{length} for layer {layer}",
                )
                return

    def head_count(self) -> Iterator[Finding]:
        names = [self.key(f"attention.{name}") for name in ("head_count", "head_count_kv", "key_length")]
        for key in names:
            _, wrong = self.integer(key)
            yield from wrong
        if self.architecture not in PLAIN_ATTENTION:
            return
        for layer, tensor in self.layers("attn_k"):
            heads, heads_kv, length = (self.of_layer(key, layer) for key in names)
            width = self.of_layer(self.key("embedding_length"), layer)
            if not heads or width is None:
                return
            heads_kv = heads if heads_kv is None else heads_kv
            length = width // heads if length is None else length
            if tensor.n_rows != heads_kv * length:
                at = names[1] if names[1] in self.model.metadata else names[0]
                yield self.at_key(
                    "head-count",
                    at,
                    f"{tensor.n_rows} rows of {tensor.name} in heads of {length}",
                    f"{heads_kv} heads for layer {layer}",
                )
                return

    def expert_count(self) -> Iterator[Finding]:
        key = self.key("expert_count")
        count, wrong = self.integer(key)
        yield from wrong
        if count is None:
            return
        for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
            for _, tensor in self.layers(name):
                if len(tensor.shape) == 3 and tensor.shape[2] != count:
                    yield self.at_key(
                        "expert-count", key, f"{tensor.shape[2]}, the last dimension of {tensor.name}", f"{count}"
                    )
                    return

    def layers(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """Yield the layer and the weight of that name, in the file's order."""
        for tensor in self.tensors.values():
            match = BLOCK.match(tensor.name)
            if match and tensor.name == f"blk.{match[1]}.{name}.weight":
                yield int(match[1]), tensor


def _main_type(recipe: str) -> str:
    """Return the type that a recipe is named after: Q4_K for Q4_K_M, F16 for F16."""
    return re.sub("^(Q[0-9]_K)_(S|M|L|XL)$", r"\1", recipe)
