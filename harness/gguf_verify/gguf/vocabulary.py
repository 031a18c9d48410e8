"""Checks of a tokenizer's keys against its vocabulary: special tokens, and merges.

llama.cpp uses a default for a special token outside the vocabulary; other readers use it as an index. A merge joins two
tokens to a third one: if one of the three is no token, it never applies, and text is split differently. All
vocabularies that llama.cpp's repository holds for its tests satisfy this, with every merge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ..support.text import printable, quoted
from .model import Model
from .records import Finding, finding
from .storage import Strings

#: Keys that name one token, or several.
_SPECIAL = re.compile(r"(?:.*[._])?token_ids?", re.DOTALL)
_TOKENS, _MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
#: -1, signed and unsigned: no such token.
_NONE = (-1, (1 << 32) - 1)
#: The most tokens of a vocabulary, and merges: known ones have up to 262,144 and 514,906.
MOST_TOKENS, MOST_MERGES = 1 << 20, 1 << 22


def at_key(slug: str, model: Model, key: str, expected: str, found: str) -> Finding:
    """Return a finding at the value of a key of the model."""
    at = model.parts[0].value_ranges[key]
    return finding(slug, at.start, at.stop, expected, f"{found} in {printable(key, 60)}", key)


def check_vocabulary(model: Model) -> Iterator[Finding]:
    """Yield findings for special tokens and merges that the vocabulary does not have."""
    size = vocabulary_size(model)
    if size is not None:
        for key in model.metadata:
            if _SPECIAL.fullmatch(key):
                yield from _special_tokens(model, key, size)
    yield from _merges(model)


def vocabulary_size(model: Model) -> int | None:
    """Return the number of tokens: those listed, or else the rows of the embedding; None if neither is there."""
    tokens = model.metadata.get(_TOKENS)
    if isinstance(tokens, Strings):
        return len(tokens)
    embedding = model.tensors.get("token_embd.weight")
    return None if embedding is None else embedding.n_rows


def _special_tokens(model: Model, key: str, size: int) -> Iterator[Finding]:
    value = model.metadata[key]
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        outside = value[((value < 0) | (value >= size)) & ~np.isin(value, _NONE)]
        several = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
        said = f"{int(outside[0])}{several}" if len(outside) else ""
    elif isinstance(value, int) and not isinstance(value, bool):
        said = "" if 0 <= value < size or value in _NONE else f"{value}"
    else:
        yield at_key("key-type", model, key, "the number of a token", "another value")
        return
    if said:
        yield at_key("special-token", model, key, f"a token from 0 to {size - 1} of a vocabulary of {size:,}", said)


def _merges(model: Model) -> Iterator[Finding]:
    tokens, merges = model.metadata.get(_TOKENS), model.metadata.get(_MERGES)
    if not isinstance(tokens, Strings) or not isinstance(merges, Strings):
        return
    if len(tokens) > MOST_TOKENS or len(merges) > MOST_MERGES:
        expected = f"at most {MOST_TOKENS:,} tokens and {MOST_MERGES:,} merges, as every known model"
        yield at_key("merges", model, _MERGES, expected, f"{len(merges):,}, which were not checked,")
        return
    wrong, first = 0, ""
    known = frozenset(tokens)
    for number, merge in enumerate(merges):
        if (why := _unknown(merge, known)) is not None:
            wrong += 1
            first = first or f"{quoted(merge)} (number {number}), {why}"
    if wrong:
        expected = f"pairs of tokens that make a third one of the vocabulary of {len(tokens):,}"
        yield at_key("merges", model, _MERGES, expected, f"{wrong:,} of {len(merges):,} are none, the first {first},")


def _unknown(merge: str, known: frozenset[str]) -> str | None:
    """Return why a merge never applies; None if it does.

    llama.cpp splits it at the first space after its first character.
    """
    space = merge.find(" ", 1)
    if space < 0:
        return "which has no space"
    pair: Sequence[str] = (merge[:space], merge[space + 1 :])
    missing = next((text for text in (*pair, "".join(pair)) if text not in known), None)
    return None if missing is None else f"of which {quoted(missing)} is no token"
