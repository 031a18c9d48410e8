"""Any device of ggml's registry as the reference: its definition is inferred from its outputs, or is unknown, which is
no pass. NumPy, llama.cpp's CPU under another name, and llvmpipe stand in for devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.llama.answers import Started
from gguf_verify.llama.backends import BACKENDS, kind_of, start
from gguf_verify.llama.gemms import Gemm
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.semantics.cuda import NoDefinition
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.array_types import Bytes, Floats
from gguf_verify.support.errors import UsageError
from gguf_verify.verification import verify
from gguf_verify_graph.other_backends import OtherBackend
from tests.support import needs
from tests.support.tools import FIXTURES

Multiply = Callable[[Floats, Floats], Floats]

Q4_0 = FORMATS["Q4_0"]


def in_float32(w: Floats, x: Floats) -> Floats:
    return (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)


def in_half(w: Floats, x: Floats) -> Floats:
    """Both factors halves, added in half by fused multiply-add, in ascending order."""
    a, b = (of.astype(np.float16).astype(np.float64) for of in (x, w))
    y = np.zeros((len(x), len(w)), np.float16)
    for k in range(a.shape[1]):
        y = (y + a[:, k, None] * b[:, k]).astype(np.float16)
    return y.astype(np.float32)


def values_of(rows: Bytes) -> Floats:
    return Q4_0.decode(rows.reshape(len(rows), -1, 18)).reshape(len(rows), -1)


class Played:
    """Products as a device has them, in place of llama.cpp's process."""

    def __init__(self, of: Multiply) -> None:
        self._of = of

    def multiply(self, type_id: int, w: Bytes, x: Floats, threads: int, backend: str) -> Floats:
        return self._of(values_of(w), x)

    def block_products(self, type_id: int, w: Bytes, x: Floats, threads: int, backend: str) -> Floats:
        values = values_of(w)
        return np.stack([self._of(values[:, k : k + 32], x[:, k : k + 32]) for k in range(0, x.shape[1], 32)])


def played(of: Multiply, backend: str = "Vulkan") -> OtherBackend:
    said = Started(backend, f"{backend}0", "NumPy")
    return OtherBackend(f"{backend}0", kind_of(backend), cast(Any, Played(of)), said)


def gemm_of(backend: OtherBackend, tokens: int) -> tuple[Gemm, Bytes]:
    rng = np.random.default_rng(1)
    rows = Q4_0.encode(rng.standard_normal((48, 16, 32)).astype(np.float32)).reshape(48, -1)
    x = rng.standard_normal((tokens, 512)).astype(np.float32)
    return Gemm("w", "y", Q4_0.type_id, x, backend.multiply(Q4_0, rows, x, 1), {}, None, tokens=tokens), rows


def test_the_device_decides() -> None:
    assert kind_of("CUDA") is BACKENDS["CUDA"]
    assert kind_of("CPU") is BACKENDS["CPU"]
    assert kind_of("Vulkan") is kind_of("a backend of 2030") is BACKENDS[""]


@pytest.mark.parametrize("tokens", [1, 9])
def test_sums_in_float32_are_known_by_outputs(tokens: int) -> None:
    backend = played(in_float32)
    assert backend.definition(Q4_0, tokens) is F32
    gemm, rows = gemm_of(backend, tokens)
    assert backend.definition_of(gemm, Q4_0, rows) is F32
    definition, y, encoded = backend.block_products(Q4_0, rows, gemm.x, tokens, 1)
    assert (definition, y.shape, encoded) == (F32, (16, tokens, 48), None)


def test_sums_in_half_are_known_by_outputs() -> None:
    """Sums of one block would also pass as those of rounded factors; longer ones do not."""
    backend = played(in_half)
    for definition in (backend.definition(Q4_0, 9), backend.block_products(Q4_0, *_block(), 9, 1)[0]):
        assert definition.accumulation.name == "float16"
    assert "added in float16" in backend.label(definition)
    assert "f16 (9 tokens)" in backend.definitions_in_words(Q4_0)


def _block() -> tuple[Bytes, Floats]:
    gemm, rows = gemm_of(played(in_half), 9)
    return np.ascontiguousarray(rows[:, :18]), np.ascontiguousarray(gemm.x[:, :32])


def test_one_wrong_output_is_judged_and_others_are_not_known() -> None:
    backend = played(in_float32)
    gemm, rows = gemm_of(backend, 2)
    gemm.y[1, 7] += 40  # more than factors rounded to half would explain
    definition = backend.definition_of(gemm, Q4_0, rows)
    assert definition is F32
    assert judge(gemm.y, product(F32, Q4_0, rows, F32.bytes_of(gemm.x))).bad.sum() == 1
    gemm.y[:] = np.roll(gemm.y, 1, axis=1)
    with pytest.raises(NoDefinition, match="no known definition gives this device's products of Q4_0"):
        backend.definition_of(gemm, Q4_0, rows)
    assert "unsupported with --reference Vulkan0" in str(backend.undefined(gemm, Q4_0, rows))


def test_a_backend_without_definitions_is_not_verified() -> None:
    backend = played(in_float32, "ROCm")
    gemm, rows = gemm_of(backend, 2)
    why = "unsupported with --reference ROCm0: products of the backend ROCm"
    assert backend.undefined(gemm, Q4_0, rows) == why
    assert backend.definitions_in_words(Q4_0) == "unsupported"


# ---- llama.cpp's process ---------------------------------------------------------------------------------------------


def test_the_cpu_by_its_name(llama: Llama) -> None:
    named, short = start("CPU", llama), start("cpu", llama)
    assert type(named) is type(short)
    assert named.definition(Q4_0) is short.definition(Q4_0)
    x = np.random.default_rng(2).standard_normal((2, 512)).astype(np.float32)
    rows = gemm_of(played(in_float32), 1)[1]
    assert (named.multiply(Q4_0, rows, x, 1) == short.multiply(Q4_0, rows, x, 1)).all()


def test_an_unknown_device_is_a_usage_error(llama: Llama) -> None:
    with pytest.raises(UsageError, match="--reference: no device is called CUDA7: there is CPU"):
        start("CUDA7", llama)


_RENAMED = """
import sys
if any("gguf_verify.llama.worker" in a for a in sys.orig_argv):
    from gguf_verify.llama import ggml
    ggml.backend_of = lambda device: "{backend}"
"""


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("ROCm", "products of the backend ROCm"),
        ("Vulkan", "no known definition gives this device's products of Q4_0"),
    ],
)
def test_products_without_a_definition_are_no_pass(
    backend: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_RENAMED.format(backend=backend))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = Options(
        probes="brief", n_predict=1, reference="CPU", progress=False, prompt="Once", tensor="attn_q.weight"
    )
    report = verify(FIXTURES / "tiny-Q4_0.gguf", "q8_1_dp4a", CpuHost(1), ["blocks", "layers"], options)
    assert report.exit_code == 5
    assert {left.why for rung in report.rungs for left in rung.unverified if left.culprit == "coverage"} >= {
        f"unsupported with --reference CPU: {why}"
    }


@pytest.mark.needs("vulkan")
def test_a_software_vulkan_is_the_reference() -> None:
    needs.need("vulkan")
    options = Options(probes="brief", reference="Vulkan0", llama=str(needs.vulkan()), progress=False)
    report = verify(Drawn(("Q4_0",), (1, 9), (64,), (512,)), "q8_1_dp4a", CpuHost(1), ["blocks", "layers"], options)
    assert report.verdict == "verified on drawn data"
    blocks, layers = report.rungs
    assert 0 < layers.worst["llama.cpp as f32"].utilisation < 1
    assert 0 < blocks.worst["llama.cpp as f16, added in float16"].utilisation < 1
    assert report.environment.reference.where.startswith("Vulkan0 (Vulkan) on llvmpipe")
