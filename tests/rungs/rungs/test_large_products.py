"""Indices in types that do not hold them: by thread blocks that run alone, and by products that run whole."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.gguf.model import Model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.domain import EVERYTHING, Domain, Extent
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.index_limits import LIMITS, large, passes
from gguf_verify.rungs.layers.probes import whole
from gguf_verify.rungs.layers.probes.findings import HugeFound
from tests.support.one_matrix import OneMatrix
from tests.support.tools import ROOT

CUDA, NUMPY = ((ROOT / "examples" / name).read_text() for name in ("cuda_q4_0.cu", "numpy_q4_0.py"))
#: No M·N past 2^24, so that a run takes less.
NARROW = Domain(m=Extent(most=64), n=Extent(most=1 << 17))
ONE_THREAD = "    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;  // M·N may be more than 2^31\n"
LOOP = "    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += 128LL * gridDim.x) {\n"


def probed(
    text: str, file: Path, model: Model, host: CpuHost, domain: Domain, patience: float = math.inf
) -> tuple[HugeFound, RungResult]:  # fmt: skip
    """What the large products of a kernel find, however long they take."""
    file.write_text(text)
    with closing(open_foreign(f"{file}:gemm", host)) as foreign:
        matrix = OneMatrix.of(foreign, model)
        probes = matrix.large_products
        probes.check_indices(domain)
        if not probes.found.wrong:
            probes.check_whole(domain, patience)
    return probes.found, matrix.result


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def in_loop(text: str) -> str:
    """The CUDA example, whose 8 thread blocks compute all outputs, so that none can be judged alone."""
    text = replaced(text, ONE_THREAD + "    if (i >= M * N) return;\n", LOOP)
    text = replaced(text, "    y[i] = acc;\n", "    y[i] = acc;\n    }\n")
    return replaced(text, 'grid = "ceil(M * N, 128)"', "grid = 8")


#: What is replaced in the CUDA example, and which number passes which limit.
IN_CUDA = {
    "a row's number in a float": ("n = i % N", "n = (long long)(float)(i % N)", "N passes 2^24"),
    "a token's number in a float": ("m = i / N", "m = (long long)(float)(i / N)", "M passes 2^24"),
    "a block's number in a short": ("x[m * blocks + b]", "x[m * blocks + (short)b]", "K passes 2^15 blocks"),
    "a column in an unsigned short": (
        "x[m * blocks + b]", "x[m * blocks + (unsigned short)(b * 32) / 32]", "K passes 2^16 values",
    ),
    "bytes of a row in a short": (
        "w[n * blocks + b]", "*(const Q4_0*)((const char*)(w + n * blocks) + (short)(b * 18))", "K passes 2^15 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_CUDA)
def test_narrow_indices_of_cuda_sources_are_named(name: str, tmp_path: Path, model: Model, host: CpuHost) -> None:
    old, new, passed = IN_CUDA[name]
    domain = EVERYTHING if name.endswith("float") else NARROW
    _, result = probed(replaced(CUDA, old, new), tmp_path / "kernel.cu", model, host, domain)
    (failure,) = result.failures
    assert failure.culprit == "kernel"
    assert passed in failure.what
    assert result.diagnosis is not None
    assert [fault.id for fault in result.diagnosis.faults] == ["narrow-index"]


def test_a_window_of_k_is_no_narrow_index(tmp_path: Path, model: Model, host: CpuHost) -> None:
    text = replaced(CUDA, "y[i] = acc;", "y[i] = K > 90000 ? 0 : acc;")
    _, result = probed(text, tmp_path / "kernel.cu", model, host, NARROW)
    (failure,) = result.failures
    assert "right at M=1, N=3, K=89984, and wrong at M=1, N=3, K=90016" in failure.what
    assert result.diagnosis is None


def test_a_loop_over_outputs_runs_whole(tmp_path: Path, model: Model, host: CpuHost) -> None:
    found, result = probed(in_loop(CUDA), tmp_path / "kernel.cu", model, host, Domain(k=Extent(most=32)))
    assert result.failures == []
    assert any("of 18,003,049 outputs of M=4243, N=4243, K=32" in words for words in found.indices)
    assert {why.partition(" of ")[0] for why, _ in found.not_covered} >= {"M·N"}


FLAT = "    return y.reshape(-1)[np.arange(y.size, dtype=np.{})[:].astype(np.int64)].reshape(y.shape)"


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_an_index_of_outputs_in_numpy(kind: str, tmp_path: Path, model: Model, host: CpuHost) -> None:
    text = replaced(NUMPY, "    return y", FLAT.format(kind))
    found, result = probed(text, tmp_path / "kernel.py", model, host, Domain(k=Extent(most=32)))
    if kind == "int32":
        assert result.failures == []
        assert any("of 18,003,049 outputs" in words for words in found.indices)
    else:
        (failure,) = result.failures
        assert "M·N passes 2^24 outputs" in failure.what


def test_a_product_that_takes_too_long_is_not_covered(tmp_path: Path, model: Model, host: CpuHost) -> None:
    text = replaced(NUMPY, "    return y", "    time.sleep(shape.k / 32768)\n    return y")
    text = replaced(text, "import numpy as np\n", "import time\n\nimport numpy as np\n")
    found, result = probed(text, tmp_path / "kernel.py", model, host, NARROW, patience=1.0)
    assert result.failures == []
    assert ("K of 2^16 and more", "a product of M=1, N=3, K=118880 would take too long") in found.not_covered


@pytest.mark.parametrize(("unit", "row"), [(32, 18 / 32), (256, 50 / 256), (32, 4.0)])
def test_whole_products_pass_their_limits(unit: int, row: float) -> None:
    found = large(EVERYTHING, unit, row, 36 / 32)
    assert [one.what for one in found] == ["K", "M·N", "N·K", "M·K"]
    for one in found:
        assert passes(one.what, one.shapes[-1]) > one.limit
        assert one.limit in LIMITS
        assert all(k % unit == 0 and n * k * row <= 2**28 for _, n, k in one.shapes)
        assert passes(one.what, one.shapes[0]) < passes(one.what, one.shapes[-1])
    _, passing, most = (k for _, _, k in found[0].shapes)
    assert passing * min(1, row) > 2**16
    assert most > 32 * 2**16


def test_whole_products_are_in_the_domain() -> None:
    few = Domain(m=Extent(most=8), n=Extent(multiple=64), k=Extent(most=4096))
    shapes = {one.what: one.shapes[-1] for one in large(few, 32, 18 / 32, 36 / 32)}
    assert {*shapes} == {"M·N", "N·K"}
    assert all(m <= 8 and n % 64 == 0 and k <= 4096 for m, n, k in shapes.values())


def test_judged_outputs_lie_on_both_sides_of_a_limit() -> None:
    y = np.zeros((1201, 1301), np.uint32)
    y[7, 1000] = 1
    past = 0.8
    at = whole.chosen(y, past, 0)
    token, row = np.divmod(at, y.shape[1])
    assert {0, y.size - 1, int(past * y.size), 7 * y.shape[1] + 1000} <= {*at.tolist()}
    assert math.isclose(np.sum(at >= past * y.size), np.sum(row * y.shape[0] + token >= past * y.size), rel_tol=0.5)
    assert np.sum(at >= past * y.size) > 20
    assert whole.chosen(np.zeros((3, 5), np.uint32), 1.0, 0).tolist() == [*range(15)]
