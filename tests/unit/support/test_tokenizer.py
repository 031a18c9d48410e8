"""The prompt's tokens, of which there may be more than the prompt has bytes."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_verify.llama.worker.calls import CallFailed
from gguf_verify.llama.worker.model import MOST_TOKENS_A_BYTE, LoadedModel


class Tokenizer:
    """Stands in for llama.cpp's: it makes `n` tokens, and answers as it does where the buffer is too small."""

    llama_token = ctypes.c_int32

    def __init__(self, n: int) -> None:
        self.n = n
        self.sizes: list[int] = []

    def llama_tokenize(self, _vocab: Any, _text: bytes, _length: int, tokens: Any, size: int, *_: bool) -> int:
        self.sizes.append(size)
        if size < self.n:
            return -self.n
        tokens[: self.n] = list(range(self.n))
        return self.n


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    model: Any = SimpleNamespace(_lib=tokenizer, _vocab=None)
    result, _ = LoadedModel.tokenize(model, text)
    return list(result["tokens"])


@pytest.mark.parametrize("n", [0, 3, 19, 20, 200])
def test_any_number_of_tokens(n: int) -> None:
    tokenizer = Tokenizer(n)
    assert tokens_of(tokenizer, "abc") == list(range(n))
    assert tokenizer.sizes == ([19] if n <= 19 else [19, n])


def test_more_than_any_tokenizer_makes_is_refused() -> None:
    with pytest.raises(CallFailed, match="wants 1,000,000 tokens for a prompt of 3 bytes"):
        tokens_of(Tokenizer(10**6), "abc")
    assert 3 * MOST_TOKENS_A_BYTE < 4096
