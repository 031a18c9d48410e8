"""llama.cpp in its process: its answers, and the handling of its crashes, aborts and hangs."""

from __future__ import annotations

import os
import re
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q8_0 import Q8_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.evaluations import Evaluation
from gguf_verify.llama.gemms import Gemm
from gguf_verify.llama.library import Llama
from gguf_verify.llama.model import LoadedModel
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import PACKAGE
from tests.support.graphs import MODELS
from tests.support.processes import end_kept, kept
from tests.support.tools import FIXTURES

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"


@pytest.fixture
def model() -> Iterator[LoadedModel]:
    with Llama() as process:
        process.model.open(Q4_0, threads=1)
        process.model.make_context(32)
        yield process.model


def test_block_products_are_those_of_the_rows(llama: Llama) -> None:
    """The view trick: each partial product equals a plain product with K=32."""
    rng = np.random.default_rng(1)
    w = llama.quantize(2, rng.standard_normal((5, 96), np.float32))
    x = rng.standard_normal((3, 96), np.float32)
    whole = llama.block_products(2, w, x)
    assert whole.shape == (3, 3, 5)
    for b in range(3):
        part = llama.block_products(2, w[:, 18 * b : 18 * (b + 1)].copy(), x[:, 32 * b : 32 * (b + 1)].copy())
        assert (part[0] == whole[b]).all()


def test_capture_sees_weights_activations_and_outputs(model: LoadedModel) -> None:
    tokens = model.tokenize("Once upon a time")
    gemms = list(model.capture(tokens, (Q8_0.type_id, Q8_1.type_id), checksum=True))
    done = gemms.pop()
    assert isinstance(done, Evaluation)
    assert done.lookup == {"token_embd.weight": "q4_0"}
    assert done.unsupported == {}
    assert len(gemms) == 22
    with open_model(Q4_0) as file:
        for gemm in gemms:
            assert isinstance(gemm, Gemm)
            tensor = file.tensors[gemm.tensor]
            assert gemm.x.shape == (len(tokens), tensor.k)
            assert gemm.y.shape == (len(tokens), tensor.n_rows)
            assert gemm.crc32 == zlib.crc32(tensor.raw.tobytes())
            assert (gemm.quantized[8] == model_from_float(gemm.x)).all()
    last = gemms[-1]
    assert isinstance(last, Gemm)
    assert (last.y == done.logits).all()  # the output matrix


def model_from_float(x: np.ndarray) -> np.ndarray:
    from gguf_verify.semantics.definitions.q8_0_cpu import encode_q8_0_cpu

    return encode_q8_0_cpu(x)


def test_graft(model: LoadedModel) -> None:
    """Handing back llama.cpp's own outputs changes nothing; zeros do; one changed GEMM moves the logits."""
    tokens = model.tokenize("Once upon a time")
    plain = model.evaluate(tokens).logits
    assert (model.graft(tokens, lambda g: g.y).logits == plain).all()
    assert (model.graft(tokens, lambda _: None).logits == plain).all()
    assert (model.graft(tokens, lambda g: 0 * g.y).logits == 0).all()
    moved = model.graft(tokens, lambda g: 2 * g.y if g.tensor == "blk.0.ffn_down.weight" else None).logits
    assert np.abs(moved - plain).max() > 0.1


def test_a_spared_product_is_not_computed(model: LoadedModel) -> None:
    """With the outputs of before in their places the logits are those of before, and the graph is whole afterwards."""
    tokens = model.tokenize("Once upon a time")
    plain, outputs = model.evaluate(tokens).logits, list[np.ndarray]()
    model.graft(tokens, lambda g: outputs.append(g.y.copy()))
    names = {g.tensor for g in model.capture(tokens) if isinstance(g, Gemm)}
    given, seen = iter(outputs), list[np.ndarray]()

    def replace(gemm: Gemm) -> np.ndarray:
        seen.append(gemm.y.copy())
        return next(given)

    assert (model.graft(tokens, replace, spared=names).logits == plain).all()
    assert not any(np.array_equal(y, before) for y, before in zip(seen, outputs, strict=True))
    assert (model.evaluate(tokens).logits == plain).all()
    with pytest.raises(LlamaRefused, match=r"no output was given for (token_embd|blk.0.attn_[qkv]).weight"):
        model.graft(tokens, lambda _: None, spared=names)
    assert (model.graft(tokens, lambda g: g.y).logits == plain).all()


@pytest.mark.parametrize("kind", ["moe", "deepseek"])
def test_products_of_experts_and_of_views_are_spared_whole(kind: str, llama: Llama, tmp_path: Path) -> None:
    """In micro-batches, with one matrix that is looked up and multiplied; where an expert's output is missing, the rows
    that were not computed do not pass for llama.cpp's."""
    path = MODELS[kind](llama, tmp_path / "model.gguf", **({"tied": True} if kind == "moe" else {}))
    with Llama() as process:
        model = process.model
        model.open(path, threads=1)
        model.make_context(32, n_ubatch=4)
        tokens, outputs = list(range(3, 14)), list[np.ndarray]()
        plain = model.evaluate(tokens).logits
        names, parts = set[str](), dict[tuple[str, str], int]()

        def noted(gemm: Gemm) -> None:
            outputs.append(gemm.y.copy())
            names.add(gemm.tensor)
            parts[gemm.tensor, gemm.node] = parts.get((gemm.tensor, gemm.node), 0) + 1

        model.graft(tokens, noted)
        given = iter(outputs)
        assert (model.graft(tokens, lambda _: next(given), spared=names).logits == plain).all()
        (several, _), count = max(parts.items(), key=lambda of: of[1])
        assert count > 3  # matrices in each of three micro-batches
        given, left = iter(outputs), [several]

        def all_but_one(gemm: Gemm) -> np.ndarray | None:
            y = next(given)
            if gemm.tensor not in left:
                return y
            left.clear()
            return None

        with pytest.raises(LlamaRefused, match=f"no output was given for {several}"):
            model.graft(tokens, all_but_one, spared=names)
        assert (model.evaluate(tokens).logits == plain).all()


def test_generate_is_greedy(model: LoadedModel) -> None:
    tokens = model.tokenize("The import statement")
    out = model.generate(tokens, 8)
    logits = model.evaluate(tokens + out[:-1]).logits
    assert logits[len(tokens) - 1 :].argmax(axis=1).tolist() == out


def test_a_file_it_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    with Llama() as process, pytest.raises(LlamaRefused, match=r"^error loading model: .*failed to load model") as told:
        process.model.open(path, threads=1)
    assert told.value.culprit == "file"


def test_crash() -> None:
    with Llama() as process:
        end_kept(process.pid, signal.SIGSEGV)
        with pytest.raises(EnvironmentFault, match=r"llama.cpp died in \w+ \(SIGSEGV\)"):
            process.versions()


def test_abort_shows_its_last_words(model: LoadedModel) -> None:
    """More tokens than the context's batch: llama.cpp asserts, and the user can read the assertion."""
    with pytest.raises(EnvironmentFault, match=r"died in evaluate \(SIGABRT\); it said: .*ASSERT"):
        model.evaluate([1] * 1000)


def test_hang() -> None:
    with Llama() as process:
        process._time_limit = 0.5  # not of the start, which takes as long on a busy machine
        os.kill(kept(process.pid), signal.SIGSTOP)
        with pytest.raises(EnvironmentFault, match=r"hung in hello: no answer for 0.5 s"):
            process.versions()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({'("buffer", c.c_void_p)': '("buffer", c.c_void_p * 2)'}, "the size of a tensor is "),
        ({'("ne",': '("nb",', '("nb",': '("ne",'}, "ne is "),
        ({'("op",': '("flags",', '("flags",': '("op",'}, "op is "),
        ({'("view_offs",': '("data",', '("data",': '("view_offs",'}, "data is "),
        ({'("buffer",': '("extra",', '("extra",': '("buffer",'}, "buffer is "),
    ],
)
def test_abi_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, str], said: str) -> None:
    """A struct that is laid out otherwise is found before anything is read through it."""
    altered = tmp_path / "ggml_altered.py"
    source = (PACKAGE / "llama" / "ggml.py").read_text()
    altered.write_text(re.sub("|".join(map(re.escape, changes)), lambda found: changes[found[0]], source))
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Shift:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gguf_verify.llama.worker' or name != 'gguf_verify.llama.ggml': return None\n"
        "        sys.meta_path.remove(self)\n"
        "        import importlib.util\n"
        f"        return importlib.util.spec_from_file_location(name, {str(altered)!r})\n"
        "sys.meta_path.insert(0, Shift())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=rf"struct layout differs in llama-cpp-python .*: {said}"):
        Llama()


@pytest.mark.parametrize("threads", [1, 16, 64])
def test_block_products_on_many_threads(llama: Llama, threads: int) -> None:
    """llama.cpp's work space grows with the threads; it died of too little of it."""
    rng = np.random.default_rng(3)
    w = llama.quantize(12, rng.standard_normal((256, 512), np.float32))  # Q4_K
    x = rng.standard_normal((3, 512), np.float32)
    assert llama.block_products(12, w, x, threads).tobytes() == llama.block_products(12, w, x).tobytes()
