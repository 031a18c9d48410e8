"""Kernels of other people that quantize activations themselves."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gguf_verify.formats.q8_0 import Q8_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.gemms import Gemm
from gguf_verify.report.writer import Kind
from gguf_verify.results.report import Report
from gguf_verify.rungs.layers.call import llama_activations
from gguf_verify.semantics.definition import quantized_inside
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.definitions.q8_0_cpu import encode_q8_0_cpu
from gguf_verify.semantics.definitions.q8_1_cpu import encode_q8_1_cpu
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tests.support import foreign_kernels
from tests.support.foreign_runs import KERNELS, opened, operands, verified
from tests.support.shown import text_of


def test_quantizes_itself() -> None:
    """All rungs, and what the report says of it."""
    report = verified(f"{KERNELS}:quantizes", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    assert [r.verdict for r in report.rungs] == ["passed"] * 3
    assert "judged by q8_1 of the float32 activations that it takes" in text_of(Kind.RUN, report)


@cache
def layers_of(name: str) -> Report:
    """The run of a kernel, which two tests judge."""
    return verified(f"{KERNELS}:{name}", "layers")


@pytest.mark.parametrize("name", ["truncates", "off_by_ulps", "sums_off"])
def test_another_quantizer_inside(name: str) -> None:
    report = layers_of(name)
    assert report.exit_code == 1
    of_kernel = [f.what for f in report.rungs[0].failures if f.what.startswith("kernel")]
    assert of_kernel
    assert all("its quantizer may differ" in what for what in of_kernel)


def test_the_diagnosis_of_a_quantizer_inside() -> None:
    report = layers_of("truncates")
    assert report.rungs[0].diagnosis is not None
    assert "activation quantizer truncates" in " ".join(report.rungs[0].diagnosis.lines)


def test_a_kernel_given_blocks_is_not_said_to_quantize() -> None:
    report = verified(f"{KERNELS}:drops_s", "layers")
    assert not any("its quantizer may differ" in f.what for f in report.rungs[0].failures)


def test_sums_in_any_order() -> None:
    """s may be either half where the order of the additions decides; nowhere else."""
    x = np.random.default_rng(3).standard_normal((4096, 96), np.float32)
    ours = Q8_1.view(encode_q8_1(x).reshape(len(x), -1, 36))["s"]
    in_order = foreign_kernels.quantized_in_order(x).view(foreign_kernels.numpy_q4_0.Q8_1)["s"]
    assert (foreign_kernels.quantized(x) == encode_q8_1(x)).all()
    moved = (ours != in_order).any(axis=1)
    assert 0 < moved.sum() < 100
    x = np.ascontiguousarray(x[moved][:8])
    rows, fmt = operands()[0], FORMATS["Q4_0"]
    for name, passes in (("sums_in_order", True), ("sums_off", False)):
        kernel = opened(name)
        y = kernel.product(kernel.upload(fmt, rows), x)
        kernel.close()
        judged = judge(y, product(kernel.definition, fmt, rows, kernel.quantize(x)))
        assert judged.passed == passes
        strict = judge(y, product(SEMANTICS["q8_1"], fmt, rows, encode_q8_1(x)))
        assert not strict.passed


def test_llama_cpps_blocks_as_values() -> None:
    """What such a kernel is fed on llama.cpp's activation bytes has these codes and scales again."""
    x, fmt = np.random.default_rng(4).standard_normal((64, 256), np.float32), FORMATS["Q4_0"]
    theirs = np.ascontiguousarray(x[::-1])  # so that none of it can come from the values
    blocks = encode_q8_1_cpu(theirs).reshape(64, -1, 36)
    quantized = {Q8_1.type_id: blocks.reshape(64, -1), Q8_0.type_id: encode_q8_0_cpu(theirs)}
    gemm = Gemm("w", "y", fmt.type_id, x, np.zeros((64, 8), np.float32), quantized, None)
    fed = llama_activations(quantized_inside(SEMANTICS["q8_1"]), fmt, gemm, SEMANTICS["q8_0_cpu"])
    again = encode_q8_1(fed.view(np.float32)).reshape(64, -1, 36)
    assert (Q8_1.codes(again) == Q8_1.codes(blocks)).all()
    assert (Q8_1.scale(again) == Q8_1.scale(blocks)).all()
