"""Graphs of other kinds: experts, batched and strided products, encoders, tied embeddings.

What is right passes, what is wrong is found and placed.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.launch import Multiply
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.evaluations import Evaluation
from gguf_verify.llama.gemms import Gemm, TappedProduct
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.tokens import grafts
from gguf_verify.support.errors import KernelFault, UsageError
from gguf_verify.verification import verify
from tests.support import graphs
from tests.support.graphs import EXPERTS, LAYERS, USED
from tests.support.tools import TamperedKernel, block_bytes

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

PROMPT = "Once upon a time"
DOWN = "blk.1.ffn_down_exps.weight"


@pytest.fixture(scope="module")
def made(llama: Llama, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a model once: its name in `graphs.MODELS`, and what else its maker takes."""
    folder = tmp_path_factory.mktemp("graphs")

    def make(name: str, **what: int) -> Path:
        path = folder / f"{name}{''.join(f'-{key}-{value}' for key, value in what.items())}.gguf"
        return path if path.exists() else graphs.MODELS[name](llama, path, **what)

    return make


def run(
    path: Path, *rungs: str, kernel: ShippedKernel | None = None, tensor: str | None = None, n_predict: int = 4
) -> Report:
    options = Options(probes="brief", prompt=PROMPT, n_predict=n_predict, threads=1, tensor=tensor, progress=False)
    kernel = kernel or ShippedKernel(KERNELS["q8_1_dp4a"], CpuHost(1))
    return verify(path, kernel, rungs=rungs or ("bytes", "blocks", "layers", "tokens"), options=options)


def verified(report: Report) -> dict[str, RungResult]:
    assert [f.what for r in report.rungs for f in r.failures] == []
    assert [r.unverified for r in report.rungs] == [[] for _ in report.rungs]
    assert report.exit_code == 0
    for rung in report.rungs:
        for who, worst in rung.worst.items():
            assert worst.utilisation <= 0.5, (rung.name, who, worst)
    return {r.name: r for r in report.rungs}


def counted(rung: RungResult, kind: str) -> int:
    """How many were checked, by the kernel under test or by one beside it."""
    return rung.checked.get(kind, 0) + rung.checked.get(f"{kind} of kernels beside it", 0)


# ---- what is right passes --------------------------------------------------------------------------------------------


def test_experts(made: Callable[..., Path]) -> None:
    """Every expert of every tensor is a GEMM of its own, also those to which no token was routed."""
    rungs = verified(run(made("moe")))
    assert counted(rungs["blocks"], "tensors") == 2 + LAYERS * 8
    layers = rungs["layers"]
    assert counted(layers, "GEMMs") == 1 + LAYERS * (5 + 3 * EXPERTS)
    router = [d for d in layers.details if d.tensor == "blk.0.ffn_gate_inp.weight"]
    assert [(d.type, d.n) for d in router] == [("F32", EXPERTS)]
    for name in ("gate", "up", "down"):
        found = [d.matrix for d in layers.details if d.tensor == f"blk.0.ffn_{name}_exps.weight"]
        assert sorted(found) == list(range(EXPERTS))
    (note,) = [n for n in layers.notes if "got no token" in n]
    idle = int(note.split()[0])
    assert idle >= LAYERS * 3
    assert rungs["tokens"].checked == {"tokens": 4, "GEMMs grafted": counted(layers, "GEMMs") - idle}


def test_batched_products_on_strided_activations(made: Callable[..., Path]) -> None:
    """Latent attention: each head's matrix is judged as one; so are experts, and one that all tokens share."""
    rungs = verified(run(made("deepseek")))
    layers = rungs["layers"]
    for part in ("k_b", "v_b"):
        found = [d.matrix for d in layers.details if d.tensor == f"blk.1.attn_{part}.weight"]
        assert found == list(range(graphs.HEADS))
    assert counted(rungs["blocks"], "tensors") == n_matrices(made("deepseek"))


def test_encoder(made: Callable[..., Path]) -> None:
    """No greedy tokens: embeddings are compared, and the report says so."""
    rungs = verified(run(made("bert")))
    assert rungs["layers"].checked["GEMMs"] == LAYERS * 6
    tokens = rungs["tokens"]
    assert tokens.checked == {"embeddings": 6, "GEMMs grafted": LAYERS * 6}
    assert "embeddings of the prompt's 6 tokens are compared, not greedy tokens" in tokens.notes[0]
    assert 0 < tokens.figures["kernel (b): 1 - cosine to llama.cpp, worst"] < 1e-3
    assert 0 < tokens.figures["kernel (a): max |Δ| to llama.cpp"] < 0.5
    assert [d.position for d in tokens.details] == list(range(6))


@pytest.mark.parametrize("seed", [5, 7])
def test_encoder_on_float32_activations(made: Callable[..., Path], seed: int) -> None:
    """Fed llama.cpp's activations such a kernel meets codes, which move; on its own, none. Each pass has its wobble."""
    (tokens,) = run(made("bert", seed=seed), "tokens", kernel=ShippedKernel(KERNELS["f32_naive"], CpuHost(1))).rungs
    assert tokens.failures == []
    assert tokens.figures["wobble (b)"] < 0.01 < tokens.figures["wobble (a)"]


def test_reranker(made: Callable[..., Path]) -> None:
    """Its classifier is part of the graph, so it must be checked: only the model's own way of pooling computes it."""
    rungs = verified(run(made("bert", ranks=True), "layers", "tokens"))
    assert [d.m for d in rungs["layers"].details if d.tensor == "cls.weight"] == [1]
    assert rungs["tokens"].checked == {"embeddings": 1, "GEMMs grafted": LAYERS * 6 + 2}


def test_encoder_with_a_decoder(made: Callable[..., Path]) -> None:
    """The prompt is read by the encoder, whose GEMMs are part of each pass; the decoder writes from nothing."""
    rungs = verified(run(made("t5")))
    both = LAYERS * (6 + 10) + 1
    assert rungs["layers"].checked["GEMMs"] == both
    sizes = {d.tensor: d.m for d in rungs["layers"].details}
    assert sizes["enc.blk.0.attn_q.weight"] == sizes["dec.blk.0.cross_attn_k.weight"] > 1
    assert sizes["dec.blk.0.attn_q.weight"] == 1
    assert rungs["tokens"].checked == {"tokens": 4, "GEMMs grafted": both}


def test_encoder_of_such_a_model_alone(made: Callable[..., Path]) -> None:
    rungs = verified(run(made("t5", decoder=False)))
    assert rungs["tokens"].checked["GEMMs grafted"] == LAYERS * 6
    assert rungs["tokens"].checked["embeddings"] > 1


def test_tied_embeddings(made: Callable[..., Path]) -> None:
    """token_embd.weight is looked up and is the output matrix too: one tensor, one GEMM, checked once."""
    path = made("moe", tied=True)
    rungs = verified(run(path))
    assert counted(rungs["blocks"], "tensors") == n_matrices(path)
    assert [d.tensor for d in rungs["blocks"].details].count("token_embd.weight") == 1
    assert [d.tensor for d in rungs["layers"].details].count("token_embd.weight") == 1
    assert "tensors only looked up" not in rungs["layers"].not_checked
    assert not [n for n in rungs["blocks"].notes if "token_embd" in n]


def n_matrices(path: Path) -> int:
    with open_model(path) as model:
        return sum(len(t.shape) > 1 for t in model.tensors.values())


# ---- capture and graft -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["moe", "deepseek"])
def test_capture_pairs_each_row_with_its_matrix(made: Callable[..., Path], name: str) -> None:
    """llama.cpp's outputs are those rows times those weights: no other matrix and no other order comes near."""
    path = made(name)
    rows_of: dict[str, int] = {}
    with Llama() as process, open_model(path) as model:
        process.model.open(path, threads=1)
        process.model.make_context(32)
        tokens = process.model.tokenize(PROMPT)
        for gemm in process.model.capture(tokens, checksum=True, idle=True):
            if isinstance(gemm, Evaluation):
                assert gemm.unsupported == {}
                continue
            tensor = model.tensors[gemm.tensor]
            n = gemm.y.shape[1]
            assert gemm.first_row % n == 0
            rows = tensor.blocks(gemm.first_row, gemm.first_row + n)
            assert gemm.crc32 == zlib.crc32(rows.tobytes())
            if gemm.idle:
                assert len(gemm.y) == 0 < len(gemm.x)
                continue
            rows_of[gemm.node] = rows_of.get(gemm.node, 0) + len(gemm.x)
            assert tensor.type.weights is not None
            weights = tensor.type.weights.decode(rows.reshape(n, -1, tensor.type.block_bytes)).reshape(n, tensor.k)
            expected = gemm.x @ weights.T
            assert ((gemm.y - expected) ** 2).sum() < 1e-3 * (expected**2).sum(), gemm.node
        routed = [m for node, m in rows_of.items() if node.startswith("ffn_moe") and "logits" not in node]
        assert routed == [USED * len(tokens)] * len(routed)
        assert len(routed) >= 3
        if name == "deepseek":
            assert graphs.HEADS * len(tokens) in rows_of.values()


def test_graft_puts_each_row_back(made: Callable[..., Path]) -> None:
    path = made("moe")
    with Llama() as process:
        process.model.open(path, threads=1)
        process.model.make_context(32)
        tokens = process.model.tokenize(PROMPT)
        plain = process.model.evaluate(tokens).logits
        assert (process.model.graft(tokens, lambda g: g.y).logits == plain).all()
        assert (process.model.graft(tokens, lambda g: g.y if "_exps" in g.tensor else None).logits == plain).all()
        experts = [
            g for g in process.model.capture(tokens) if isinstance(g, Gemm) and g.tensor == DOWN and len(g.x) > 1
        ]
        one = experts[0].first_row

        def other_order(gemm: Gemm) -> Floats | None:
            return gemm.y[::-1] if (gemm.tensor, gemm.first_row) == (DOWN, one) else None

        moved = np.abs(process.model.graft(tokens, other_order).logits - plain).max(axis=1)
        assert 0 < np.count_nonzero(moved) <= len(experts[0].x)  # of the last layer's tokens, only those that it got
        with pytest.raises(KernelFault, match="an output of"):
            process.model.graft(tokens, lambda g: g.y[:1])


def test_layout_of_views() -> None:
    """Batched, broadcast and strided products taken apart as ggml computes them; what cannot be is named."""
    from gguf_verify.llama import ggml
    from gguf_verify.llama.worker import nodes

    ggml.ggml_cpu_init()
    ctx = ggml.ggml_init(ggml.InitParams(1 << 22, None, False))
    try:
        rng = np.random.default_rng(0)
        w = ggml.ggml_new_tensor_2d(ctx, 8, 64, 24)  # Q8_0
        values = rng.standard_normal((24, 64), np.float32)
        raw = np.empty((24, 68), np.uint8)
        ggml.ggml_quantize_chunk(8, ggml.pointer(values), ggml.pointer(raw), 0, 24, 64, None)
        _fill(w, raw)
        x = ggml.ggml_new_tensor_2d(ctx, ggml.F32, 64, 40)
        _fill(x, rng.standard_normal((40, 64), np.float32))

        def matrices(wv: object, xv: object) -> nodes.Layout:
            y = ggml.ggml_mul_mat(ctx, wv, xv)
            assert nodes.obstacle(y.contents) is None
            graph = ggml.ggml_new_graph(ctx)
            ggml.ggml_build_forward_expand(graph, y)
            assert ggml.ggml_graph_compute_with_ctx(ctx, graph, 1) == 0
            parts = nodes.layout(y.contents)
            rows, out = _values(xv), _values(y)
            assert len(out) == len(parts.row)
            for made, matrix, row in zip(out, parts.matrix, parts.row, strict=True):
                first = parts.first_rows[matrix]
                expected = values[first : first + len(made)] @ rows[row]
                assert np.abs(made - expected).max() < 0.05 * np.abs(expected).max()
            return parts

        def view_w(n: int, matrices: int, offset: int) -> object:
            return ggml.ggml_view_3d(ctx, w, 64, n, matrices, 68, 68 * n, offset)

        def view_x(rows: int, matrices: int, row: int, matrix: int, offset: int = 0) -> object:
            return ggml.ggml_view_3d(ctx, x, 64, rows, matrices, 256 * row, 256 * matrix, 256 * offset)

        assert matrices(w, x).first_rows == [0]
        assert matrices(view_w(6, 3, 0), view_x(4, 3, 1, 4)).first_rows == [0, 6, 12]
        # heads side by side in a row of the layer before: its second dimension is the slower one
        assert matrices(view_w(6, 3, 68 * 6), view_x(5, 3, 3, 1, 2)).first_rows == [6, 12, 18]
        # each matrix for two of x
        assert matrices(view_w(8, 2, 68), view_x(3, 4, 1, 5)).matrix.tolist() == [0] * 6 + [1] * 6

        def why(wv: object, xv: object) -> str | None:
            return nodes.obstacle(ggml.ggml_mul_mat(ctx, wv, xv).contents)

        half = ggml.ggml_view_3d(ctx, w, 32, 24, 1, 68, 68 * 24, 34)
        assert "rows of another length" in str(why(half, ggml.ggml_view_3d(ctx, x, 32, 4, 1, 256, 1024, 0)))
        every_other = ggml.ggml_view_3d(ctx, w, 64, 12, 1, 136, 68 * 24, 0)
        assert "are not contiguous" in str(why(every_other, x))
        assert "does not start at a row" in str(why(ggml.ggml_view_3d(ctx, w, 64, 4, 1, 68, 68 * 4, 34), x))
        assert "activations are q8_0" in str(why(w, w))
    finally:
        ggml.ggml_free(ctx)


def _fill(t: object, values: npt.NDArray[np.generic]) -> None:
    from gguf_verify.llama import ggml

    ctypes.memmove(ggml.ggml_get_data(t), ggml.pointer(values), values.nbytes)


def _values(t: object) -> Floats:
    """A float32 tensor that no backend owns, rows flattened."""
    s = t.contents  # type: ignore[attr-defined]
    span = 4 + sum((n - 1) * step for n, step in zip(s.ne, s.nb, strict=True))
    raw = np.frombuffer(ctypes.string_at(s.data, span), np.float32)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(raw, tuple(s.ne)[::-1], tuple(s.nb)[::-1])).reshape(
        -1, s.ne[0]
    )


def test_a_prompt_that_is_too_long_for_an_encoder(made: Callable[..., Path]) -> None:
    """Its table of positions ends: llama.cpp would read past it."""
    options = Options(probes="brief", prompt="a " * 70, progress=False)
    with pytest.raises(UsageError, match="the prompt has 72 tokens, the model reads 64 at most"):
        verify(made("bert"), host=CpuHost(1), rungs=["tokens"], options=options)


# ---- tests of the tests ----------------------------------------------------------------------------------------------


class WrongWhere(ShippedKernel):
    """Right but where the weights are those of some rows: there the output goes through `fault`."""

    def __init__(self, rows: Bytes | None, fault: Callable[[Floats], Floats]) -> None:
        super().__init__(KERNELS["q8_1_dp4a"], CpuHost(1))
        self._rows, self._fault = rows, fault
        self._wrong: Weights | None = None

    def upload(self, fmt: WeightFormat, rows: Bytes) -> Weights:
        weights = super().upload(fmt, rows)
        if self._rows is None or np.array_equal(rows, self._rows):
            self._wrong = weights
        return weights

    def _outputs(self, multiply: Multiply, weights: Weights, x: npt.NDArray[Any]) -> Floats:
        y = super()._outputs(multiply, weights, x)
        return self._fault(y) if weights is self._wrong else y


def expert_rows(path: Path, tensor: str, expert: int) -> Bytes:
    with open_model(path) as model:
        t = model.tensors[tensor]
        n = t.shape[1]
        return t.raw.reshape(t.n_rows, t.row_bytes)[expert * n : (expert + 1) * n].copy()


def routed_expert(path: Path, tensor: str) -> int:
    """An expert that gets several tokens of the prompt."""
    with Llama() as process:
        process.model.open(path, threads=1)
        process.model.make_context(32)
        gemms = [
            g
            for g in process.model.capture(process.model.tokenize(PROMPT))
            if isinstance(g, Gemm) and g.tensor == tensor
        ]
    most = max(gemms, key=lambda g: len(g.x))
    assert len(most.x) > 2
    return most.first_row // most.y.shape[1]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda y: y * np.float32(1.01), id="1 % too much"),
        pytest.param(lambda y: np.ascontiguousarray(y[::-1]), id="rows of its tokens in another order"),
    ],
)
def test_wrong_for_one_expert(made: Callable[..., Path], fault: Callable[[Floats], Floats]) -> None:
    path = made("moe")
    expert = routed_expert(path, DOWN)
    kernel = WrongWhere(expert_rows(path, DOWN, expert), fault)
    report = run(path, "layers", "tokens", kernel=kernel, tensor="blk.1.ffn_down")
    assert [r.verdict for r in report.rungs] == ["failed", "failed"]
    found = [f for r in report.rungs for f in r.failures if f.tensor]
    assert {(f.tensor, f.matrix) for f in found} == {(DOWN, expert)}
    assert all(f"{DOWN} expert {expert} row" in f.what for f in found)
    for f in found:
        assert f.row is not None
        assert f.row // graphs.WIDTH == expert


def test_wrong_for_an_expert_without_tokens(made: Callable[..., Path]) -> None:
    """No token goes to the last expert: its weights are judged all the same."""
    path = made("moe")
    kernel = WrongWhere(expert_rows(path, DOWN, EXPERTS - 1), lambda y: y * np.float32(1.01))
    layers, tokens = run(path, "layers", "tokens", kernel=kernel, tensor="blk.1.ffn_down").rungs
    assert {f.matrix for f in layers.failures} == {EXPERTS - 1}
    assert tokens.verdict == "passed"  # indeed, none


def test_rows_that_nothing_multiplies(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """If experts without tokens were passed over, their weights would go unchecked: that is no pass."""

    def none(_: TappedProduct) -> Iterator[Gemm]:
        return iter(())

    monkeypatch.setattr(TappedProduct, "idle", none)
    report = run(made("moe"), "layers", tensor=DOWN)
    assert report.exit_code == 5
    (unverified,) = report.rungs[0].unverified
    assert unverified.name == DOWN
    assert f"of its {EXPERTS * graphs.WIDTH} rows" in unverified.why


@pytest.mark.parametrize("row", [37, 200])
def test_one_wrong_block_of_an_expert(made: Callable[..., Path], row: int) -> None:
    """One code off by one, given only to the kernel: expert, row, block and byte are named by both rungs."""
    path, expert, block = made("moe"), EXPERTS - 1, 6
    at = expert * graphs.WIDTH + row
    original = block_bytes(path, DOWN, at, block)
    altered = bytearray(original)
    altered[9] ^= 1
    report = run(path, "blocks", "layers", kernel=TamperedKernel("q8_1_dp4a", original, bytes(altered)), tensor=DOWN)
    with open_model(path) as model:
        offset = model.tensors[DOWN].offset + (at * graphs.WIDTH // 32 + block) * 18
    for rung in report.rungs:
        assert rung.verdict == "failed"
        placed = [f for f in rung.failures if f.block is not None]
        assert placed
        for f in placed:
            assert (f.tensor, f.matrix, f.row, f.block, f.byte_offset) == (DOWN, expert, at, block, offset)
            assert f.block_hex == original.hex() == path.read_bytes()[offset : offset + 18].hex()
            assert f"{DOWN} expert {expert} row {row} (the tensor's row {at}) block {block}" in f.what


def test_an_expert_fed_with_others_rows(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the harness paired rows wrongly, llama.cpp's own outputs would not fit; and the logits, which are nothing that
    is judged, would be further from llama.cpp's."""
    kl = "kernel: mean KL to llama.cpp"
    before = run(made("moe"), "tokens", tensor="_exps", n_predict=8).rungs[0].figures[kl]
    original = TappedProduct._gemm

    def shifted(self: TappedProduct, matrix: int, rows: npt.NDArray[np.intp], y: Floats, idle: bool = False) -> Gemm:
        return original(self, matrix, np.roll(rows, 1), y, idle)

    monkeypatch.setattr(TappedProduct, "_gemm", shifted)
    report = run(made("moe"), "layers", tensor="_exps", n_predict=8)
    assert report.exit_code == 1
    assert any(f.what.startswith("llama.cpp") for r in report.rungs for f in r.failures)
    after = run(made("moe"), "tokens", tensor="_exps", n_predict=8).rungs[0].figures[kl]
    assert after > 10 * before


def test_rows_put_back_in_another_order(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    original = TappedProduct.joined

    def rolled(self: TappedProduct, given: list[Floats | None]) -> Floats | None:
        return original(self, [None if y is None else np.roll(y, 1, axis=0) for y in given])

    monkeypatch.setattr(TappedProduct, "joined", rolled)
    report = run(made("moe"), "tokens", tensor="_exps")
    assert report.exit_code == 5
    assert "put back in place" in report.rungs[0].unverified[0].why


def test_an_expert_that_llama_holds_otherwise(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum is each expert's."""
    path = made("moe")
    wanted = zlib.crc32(expert_rows(path, DOWN, 3).tobytes())
    original = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda data: original(data) ^ (original(data) == wanted))
    (layers,) = run(path, "layers", tensor=DOWN).rungs
    assert [f.what for f in layers.failures] == [f"{DOWN} expert 3: llama.cpp holds other bytes than the file"]


def test_encoder_with_a_kernel_that_is_1_percent_off(made: Callable[..., Path]) -> None:
    kernel = WrongWhere(None, lambda y: y * np.float32(1.01))
    report = run(made("bert"), "blocks", "layers", "tokens", kernel=kernel)
    assert report.exit_code == 1
    assert [r.verdict for r in report.rungs] == ["failed"] * 3


@pytest.mark.parametrize("which", ["(a)", "(b)"])
def test_embeddings_alone_find_a_wrong_kernel(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """With the judgement of each output switched off, what the embeddings themselves can tell."""
    monkeypatch.setattr(grafts, "judge_whole", lambda *_: None)
    path = made("bert")
    with open_model(path) as model:
        up = model.tensors["blk.0.ffn_up.weight"]
        rows = up.raw.reshape(up.n_rows, up.row_bytes).copy()
    assert run(path, "tokens").exit_code == 0
    (tokens,) = run(path, "tokens", kernel=WrongWhere(rows, lambda y: np.roll(y, 1, axis=1))).rungs
    found = [f for f in tokens.failures if f.what.startswith(which)]
    assert found
    assert all("of the embedding of token" in f.what and f.utilisation is not None for f in found)
    (tokens,) = run(path, "tokens", kernel=WrongWhere(rows, lambda y: y * np.float32(np.nan))).rungs
    assert tokens.n_failures == 12
