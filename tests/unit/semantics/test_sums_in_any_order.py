"""A correct sum passes in whatever order it was added."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q4_k import Q4_K
from gguf_verify.formats.q5_1 import Q5_1
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.accumulation import SCORE_LIMIT
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.definitions.q8_0_cpu import Q8_0_CPU
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.definitions.q8_1_cpu import Q8_1_CPU
from gguf_verify.semantics.definitions.q8_k_cpu import Q8_K_CPU
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tests.support.exact_products import LEGACY, Bytes, Floats, activations, real_weights, whole_row

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


def float32_terms(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> tuple[Floats, Floats | None]:
    """What a kernel that rounds every operation adds up: float32 [nb, M, N], scale·sum and m·s or m·d_a·Σ q_a."""
    a = semantics.activations
    assert a is not None
    values = 16 if fmt.group == 16 else 32
    wb, xb = w.reshape(len(w), -1, fmt.block_bytes), x.reshape(len(x), -1, a.block_bytes)
    q = fmt.codes(wb).astype(np.float32).reshape(len(w), -1, values)
    if semantics.term.offset(fmt):
        q -= np.float32(fmt.offset)
    q_a = a.codes(xb).astype(np.float32).reshape(len(x), -1, values)
    sums = np.matmul(q_a.transpose(1, 0, 2), q.transpose(1, 2, 0))

    def by_term(of_groups: Floats) -> Floats:
        flat = of_groups.reshape(len(w), -1)
        return np.repeat(flat, q.shape[1] // flat.shape[1], axis=1).T[:, None, :]

    d_a = np.repeat(a.scale(xb), a.block_size // values, axis=1).T[:, :, None]
    first = d_a * by_term(fmt.scales(wb)) * sums
    if semantics.uses_sum(fmt):
        return first, a.view(xb)["s"].astype(np.float32).T[:, :, None] * by_term(fmt.minima(wb))
    if fmt.has_min:
        return first, d_a * by_term(fmt.minima(wb)) * q_a.sum(axis=-1).T[:, :, None]
    return first, None


def forward(t: Floats) -> Floats:
    total = np.zeros_like(t[0])
    for term in t:
        total = total + term
    return total


def reverse(t: Floats) -> Floats:
    return forward(t[::-1])


def pairwise(t: Floats) -> Floats:
    while len(t) > 1:
        odd = t[len(t) // 2 * 2 :]
        t = np.concatenate([t[0 : len(t) // 2 * 2 : 2] + t[1::2], odd])
    return t[0]


def eight_lanes(t: Floats) -> Floats:
    return pairwise(np.stack([forward(t[lane::8]) for lane in range(min(8, len(t)))]))


def split(t: Floats) -> Floats:
    """Two halves of K apart, as split-K kernels do."""
    return forward(t[: len(t) // 2]) + forward(t[len(t) // 2 :])


ORDERS = (forward, reverse, pairwise, eight_lanes, split)


@pytest.mark.parametrize(
    ("semantics", "fmt", "m", "n", "k"),
    [
        (Q8_1_RAW, Q4_0, 500, 1000, 512),
        (Q8_1_RAW, Q5_1, 500, 1000, 128),
        (Q8_1_CPU, Q5_1, 200, 500, 1024),
        (Q8_0_CPU, Q4_0, 500, 1000, 1024),
        (Q8_0_CPU, FORMATS["Q8_0"], 500, 1000, 64),
        (Q8_1_RAW, Q4_0, 8, 200, 14336),
        (Q8_1_RAW, FORMATS["Q2_K"], 100, 300, 512),
        (Q8_K_CPU, Q4_K, 100, 300, 1024),
        (Q8_K_CPU, FORMATS["Q6_K"], 100, 300, 1024),
        (Q8_K_CPU, FORMATS["TQ1_0"], 100, 300, 512),
        (Q8_0_CPU, NVFP4, 100, 300, 1024),
    ],
    ids=lambda v: str(getattr(v, "name", v)),
)
def test_correct_sums_in_any_order_pass(
    semantics: Semantics, fmt: BlockFormat, m: int, n: int, k: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Together some millions of outputs: the limit on the score never calls a correct kernel wrong, and is silent."""
    w, x = real_weights(fmt, n, k, "orders"), activations(semantics, m, k, "orders")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = product(semantics, fmt, w, x, threads=2)
        first, second = float32_terms(semantics, fmt, w, x)
        for order in ORDERS:
            outputs = [order(first if second is None else first + second)]
            if second is not None:
                outputs.append(order(first) + order(second))  # integer products and m·s apart
            for y in outputs:
                judgement = judge(y, p)
                said = f"{order.__name__}: utilisation {judgement.utilisation:.3g}, score {judgement.score:.3g}"
                assert judgement.passed, said
                assert judgement.utilisation < 0.5, said
                assert judgement.score < SCORE_LIMIT / 2, said
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("semantics", [F32, Q8_1_RAW, Q8_0_CPU], ids=lambda s: s.name)
def test_products_that_underflow_pass(semantics: Semantics) -> None:
    """MXFP4's scales go down to 2^-128, where float32 no longer holds d_w·d_a: right in any order of the factors, and
    an error beyond what underflows is still seen."""
    m, n, k = 40, 60, 64
    w = real_weights(MXFP4, n, k, "tiny")
    x = semantics.bytes_of(np.random.default_rng(6).standard_normal((m, k)).astype(np.float32) / np.float32(512))
    blocks = MXFP4.view(w.reshape(n, -1, MXFP4.block_bytes))
    blocks["e"] = np.random.default_rng(5).integers(0, 2, blocks["e"].shape)
    w = blocks.view(np.uint8).reshape(n, -1)
    p = product(semantics, MXFP4, w, x)
    assert (np.abs(p.exact) < 2.0**-110).all()
    values = MXFP4.decode(w.reshape(n, -1, MXFP4.block_bytes)).reshape(n, k)
    if semantics is F32:
        outputs = [forward((x.view(np.float32)[:, None] * values).transpose(2, 0, 1))]
    else:
        sums = np.matmul(*(v.astype(np.float32) for v in codes_of(semantics, w, x)))  # [nb, m, n]
        d_w, d_a = scales_of(semantics, w, x)
        outputs = [forward(d_w * d_a * sums), forward(d_w * (d_a * sums)), forward(d_w * sums * d_a)]
    for y in outputs:
        assert judge(y, p).passed
    assert judge(np.zeros_like(outputs[0]), p).passed, "they may be flushed"
    assert not judge(outputs[0] + np.float32(2.0**-110), p).passed
    w[:] = 0
    nothing = product(semantics, MXFP4, w, np.zeros_like(x))
    assert not judge(np.full((m, n), 1e-45, np.float32), nothing).passed


def codes_of(semantics: Semantics, w: Bytes, x: Bytes) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """[nb, M, 32] and [nb, 32, N] of MXFP4."""
    assert semantics.activations is not None
    q_w = MXFP4.codes(w.reshape(len(w), -1, MXFP4.block_bytes)).reshape(len(w), -1, 32)
    q_a = semantics.activations.codes(x.reshape(len(x), -1, semantics.activations.block_bytes))
    return q_a.reshape(len(x), -1, 32).transpose(1, 0, 2), q_w.transpose(1, 2, 0)


def scales_of(semantics: Semantics, w: Bytes, x: Bytes) -> tuple[Floats, Floats]:
    """float32[nb, 1, N] and [nb, M, 1] of MXFP4."""
    assert semantics.activations is not None
    d_w = MXFP4.scales(w.reshape(len(w), -1, MXFP4.block_bytes)).reshape(len(w), -1)
    d_a = semantics.activations.scale(x.reshape(len(x), -1, semantics.activations.block_bytes)).reshape(len(x), -1)
    return d_w.astype(np.float32).T[:, None, :], d_a.astype(np.float32).T[:, :, None]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_a_float32_matrix_product_passes_as_f32(fmt: BlockFormat) -> None:
    """Whatever order this machine's BLAS adds in."""
    m, n = (200, 500) if fmt in LEGACY else (40, 100)
    for k in (64, 1024):
        k = whole_row(fmt, k)
        w, x = real_weights(fmt, n, k), activations(F32, m, k)
        y = x.view(np.float32) @ fmt.decode(w.reshape(n, -1, fmt.block_bytes)).reshape(n, k).T
        judgement = judge(y, product(F32, fmt, w, x))
        assert judgement.passed
        assert judgement.utilisation < 0.5
        assert judgement.score < SCORE_LIMIT / 2
