"""Command lines that can be pasted."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_verify.invocation import command_of
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.llama.worker.calls import CallFailed
from gguf_verify.llama.worker.model import MOST_TOKENS_A_BYTE, LoadedModel
from gguf_verify.results.options import Options
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.rungs.opening import Request
from gguf_verify.rungs.registry import rungs_for
from gguf_verify.support.command_line import command_line, pattern_of, program, quoted, repeat, shown, with_flags

WORDS = ["plain", "two words", "it's", 'a "b"', "$(id) `id` $x", "back\\slash", "new\nline\ttab", "\x1b[31m", "ü 世界",
         "\u202eevil", "", "-x", "--tensor", "a;b|c&d>e", "\udcff raw", "'\n'", "\\", "!x"]  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_shell_reads_back_what_was_quoted() -> None:
    script = "printf '%s\\0' " + " ".join(map(quoted, WORDS))
    assert script.isprintable()
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=60)
    assert [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]] == WORDS


def test_no_program_but_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for typed in ("/x/gguf_verify/__main__.py", "/usr/bin/pytest", "-c", "", "gguf-verify", "/x/bin/gguf-verify"):
        monkeypatch.setattr(sys, "argv", [typed, "verify", "m.gguf"])
        assert program() == "gguf-verify"
    monkeypatch.setattr(sys, "argv", ["my scripts/verify_model.py", "m.gguf"])
    assert program() == "python 'my scripts/verify_model.py'"
    monkeypatch.setattr(sys, "argv", [])
    assert program() == "gguf-verify"


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gguf-verify"])


SEED = Options(seed=3)


@pytest.mark.usefixtures("_plain")
def test_a_run_as_a_command_line() -> None:
    options = Options(prompt="it's", seed=7, tensor="attn", probes="brief", sanitize=True, time_limit=10.5)
    made = command_of(Request("m.gguf", "mine.py:gemm", "cpu", ["layers"], options))
    assert made == (
        "gguf-verify m.gguf --kernel mine.py:gemm --host cpu --rungs layers -p 'it'\"'\"'s' -s 7 --tensor attn "
        "--time-limit 10.5 --effort quick --sanitize"
    )
    assert command_of(Request("m.gguf", "q8_1", "auto", rungs_for(), SEED)) == "gguf-verify m.gguf -s 3"
    assert command_of(Request("m.gguf", "q8_1", "auto", None, SEED)) == "gguf-verify m.gguf -s 3"
    assert (
        command_of(Request("m.gguf", "q8_1", "auto", None, SEED), identify=True)
        == "gguf-verify identify q8_1 m.gguf -s 3"
    )
    assert command_of(Request("-m", "q8_1", "auto", rungs_for(), SEED)) == "gguf-verify ./-m -s 3"
    assert command_of(Request("audit", "q8_1", "auto", rungs_for(), SEED)) == "gguf-verify ./audit -s 3"
    assert (
        command_of(Request("m.gguf", "q8_1", "auto", rungs_for(), SEED), Path("p.txt"))
        == "gguf-verify m.gguf -f p.txt -s 3"
    )
    drawn = Request(Drawn(("Q4_0",)), "q8_1", "auto", None, SEED)
    assert command_of(drawn) == "gguf-verify kernel q8_1 --type Q4_0 -s 3"
    assert command_of(drawn, identify=True) == "gguf-verify identify q8_1 --type Q4_0 -s 3"
    costs = Request("m.gguf", "q8_1", "auto", ("bytes",), SEED, source="f16.gguf", source_text="wiki.txt")
    assert command_of(costs) == "gguf-verify cost m.gguf -s 3 --source f16.gguf --text wiki.txt"
    thorough = Request("m.gguf", "q8_1", "auto", None, Options(thorough=True, seed=3))
    assert command_of(thorough) == "gguf-verify m.gguf -s 3 --effort thorough"
    made = command_of(Request("m.gguf", "q8_1", "auto", rungs_for(), Options(prompt="--tensor", seed=3)))
    assert made.endswith(" --prompt=--tensor -s 3")


@pytest.mark.usefixtures("_plain")
def test_functions_have_a_name_where_another_process_finds_them() -> None:
    made = command_of(Request("m.gguf", pattern_of, "auto", rungs_for(), SEED))
    assert re.fullmatch(r"gguf-verify m.gguf --kernel \S+command_line\.py:pattern_of -s 3", made)
    assert command_of(Request("m.gguf", lambda w, x, s: None, "auto", rungs_for(), SEED)) == ""
    assert repeat("", "layers", "blk", "own") == ""
    assert next(iter(KERNELS)) in command_of(Request("m.gguf", next(iter(KERNELS)), "auto", rungs_for(), SEED))


@pytest.mark.usefixtures("_plain")
def test_cut_down_to_a_call() -> None:
    whole = command_line(
        "m.gguf", {"--rungs": "blocks,layers", "-p": "--tensor", "--tensor": "a b", "--sanitize": None}
    )
    assert repeat(whole, "layers", "blk.0", "own,m=3") == (
        "gguf-verify m.gguf --prompt=--tensor --sanitize --rungs layers --tensor '^blk[.]0$' --only-call own,m=3"
    )
    again = repeat(repeat(whole, "layers", "blk.0", "own,m=3"), "blocks", "blk.1", "block")
    assert again.count("--only-call") == again.count(" --tensor ") == again.count("--rungs") == 1
    assert "--tensor 'a b'" in repeat(whole, "tokens", "blk.0", "graft")
    assert with_flags(r"gguf-verify $'a\'b c' --rungs x", {}, ("--rungs",)) == r"gguf-verify $'a\'b c'"


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "a+b(c)", "x\ny", "", "ü"])
def test_a_pattern_of_one_name(name: str) -> None:
    assert re.search(pattern_of(name), name)
    assert not re.search(pattern_of(name), name + "x")
    assert not re.search(pattern_of(name), "x" + name)
    assert not re.search(pattern_of("blk.0"), "blkx0")


def test_shown_text_can_be_pasted_and_has_no_control_character() -> None:
    assert shown(r"--tensor 'a\.b'") == r"--tensor 'a\.b'"
    assert shown("a\x1b[31m\u202e").isprintable()


# ---- tokenizer -------------------------------------------------------------------------------------------------------
# The prompt's tokens, of which there may be more than the prompt has bytes.


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
