"""Kernels whose declared rounding would excuse anything: what their bounds cannot refuse is not verified."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

from gguf_verify import Drawn, Options, verify
from gguf_verify.cli import main
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.report import card, scene
from gguf_verify.report.writer import Kind
from gguf_verify.results.report import Report
from tests.support.foreign_runs import verified
from tests.support.shown import written

KERNELS = """
import numpy as np
from gguf_verify import kernel

def decoded(w):
    blocks = w.reshape(len(w), -1, 18)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).astype(np.float64) - 8
    return (codes * d).reshape(len(w), -1)

def half(values):
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float64)

def added_in_half(a, w):
    total = np.zeros((len(a), len(w), 32))
    for k in range(0, a.shape[1], 32):
        total = half(half(a[:, None, k : k + 32] * w[None, :, k : k + 32]) + total)
    while total.shape[2] > 1:
        total = half(total[..., ::2] + total[..., 1::2])
    return total[..., 0].astype(np.float32)

def fused_in_half(a, w):
    total = np.zeros((len(a), len(w)))
    for k in range(a.shape[1]):
        total = half(a[:, None, k] * w[None, :, k] + total)
    return total.astype(np.float32)

SHARE = 1

@kernel(formats=["Q4_0"], semantics="f16", accumulates="float16", domain={"K": {"most": 256}, "N": {"most": 256}})
def honest(weights, activations, shape):
    return np.float32(SHARE) * added_in_half(half(activations.astype(np.float64)), half(decoded(weights)))

@kernel(formats=["Q4_0"], semantics="f32_apart", accumulates="float16", deterministic=False)
def apart(weights, activations, shape):
    y = activations.astype(np.float64) @ decoded(weights).T
    return y.astype(np.float32)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(KERNELS)
    return path


def words(report: Report) -> list[str]:
    return [f"{left.title}: {left.why}" for rung in report.rungs for left in rung.unverified]


def test_a_correct_kernel_that_adds_in_half_is_verified(source: Path) -> None:
    report = verified(f"{source}:honest", "layers")
    assert report.exit_code == 0, words(report)
    layers = report.rung("layers")
    assert layers is not None
    assert layers.closer is not None
    assert layers.closer.products > 3
    assert layers.closer.words in layers.notes


def test_a_share_of_its_outputs_is_a_mismatch(source: Path) -> None:
    source.write_text(KERNELS.replace("SHARE = 1", "SHARE = 0.9"))
    assert verified(f"{source}:honest", "layers", tensor="blk.0.attn_k").exit_code == 1


@pytest.mark.parametrize(("added", "exit_code"), [("fused_in_half", 0), ("added_in_half", 1)])
def test_a_declared_order_of_sums_in_half_is_judged_by_its_bits(source: Path, added: str, exit_code: int) -> None:
    text = KERNELS.replace("* added_in_half", f"* {added}").replace(
        '"float16", domain', '"float16", ordered=True, domain'
    )
    source.write_text(text)
    report = verified(f"{source}:honest", "layers", tensor="blk.0.attn_k")
    assert report.exit_code == exit_code, words(report)
    layers = report.rung("layers")
    assert layers is not None
    assert layers.closer is None


def test_a_product_whose_bound_cannot_refuse_zeros_is_not_verified(source: Path) -> None:
    """Although its outputs are correct: so would others be."""
    few = 'domain={"K": {"most": 1024}, "N": {"most": 2}, "M": {"most": 1}}, deterministic'
    source.write_text(KERNELS.replace("deterministic", few))
    options = Options(probes="brief", progress=False)
    report = verify(Drawn(("Q4_0",), (1,), (2,), (1024,)), f"{source}:apart", CpuHost(1), ["layers"], options)
    assert report.exit_code == 5, report.failures
    (left, *_) = words(report)
    assert "product" in left
    assert "its bound would accept zero, or 0.9 times the exact output, for most outputs" in left
    assert all(left.products for rung in report.rungs for left in rung.unverified)
    assert report.culprits == {"coverage": len(words(report))}


def test_what_is_declared_beside_the_definition_stands_in_reports(source: Path) -> None:
    report = verified(f"{source}:apart", "blocks")
    declared = "f32_apart, added in float16, not deterministic"
    assert report.environment.kernel.declared == declared
    drawn = " ".join(item.text for item in card.card(report).items if isinstance(item, scene.Words))
    for text in (str(report), unescape(str(written("--markdown", Kind.RUN, report))), drawn):
        assert "added in float16, not deterministic" in " ".join(text.split())
    assert report.environment.kernel.declares == ("added in float16", "not deterministic")
    honest = verified(f"{source}:honest", "blocks").environment.kernel
    assert honest.declared == "f16, added in float16, domain N from 1 to 256, K from 1 to 256"


def test_tensor_cores_that_no_gpu_has_are_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    path = tmp_path / "mine.py"
    path.write_text(KERNELS.replace('"f16", accumulates="float16"', '"f16", accumulates={"L": 900, "F": 14}'))
    assert main(["kernel", f"{path}:honest", "-K", "1024"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "published GPUs add L = 4 to 16 products with F = 23 to 25 bits, not 900 and 14" in line
