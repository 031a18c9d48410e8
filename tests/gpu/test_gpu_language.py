"""CUDA C++ features that kernels of engines use, on a GPU: outputs are those that NumPy and the CPU host compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.hosts import nvcc
from gguf_verify.hosts.author_cubin import OF_NVCC, author_cubin
from gguf_verify.hosts.base import Artefact
from gguf_verify.hosts.choice import make_host
from gguf_verify.hosts.compilation import ForeignUnit
from gguf_verify.kernels.foreign.cuda import CudaSource
from gguf_verify.kernels.foreign.declared import parse
from tests.support import cuda_features as probe

pytestmark = pytest.mark.needs("gpu")

DECLARED = (
    'formats = ["Q4_0"]\nsemantics = "q8_1"\nparameters = ["weights", "activations", "output"]\nblock = 64\ngrid = 1\n'
)


@pytest.mark.parametrize("by", ["NVRTC", "nvcc"])
def test_all_features_on_the_gpu(by: str, tmp_path: Path) -> None:
    if nvcc.include_folder() is None or (by == "nvcc" and nvcc.version() is None):
        pytest.skip(f"{by} or CUDA's headers are not here")
    (tmp_path / "probe.cu").write_text(probe.source(list(probe.FEATURES)))
    source = CudaSource(tmp_path / "probe.cu", "deep::inside::scaled<4, unsigned>", parse(DECLARED))
    host = make_host("gpu", 0)
    assert host.sm is not None
    entries = tuple(probe.entry(name) for name in probe.FEATURES)
    made = author_cubin(ForeignUnit(source.root, OF_NVCC, entries), host.sm, by=by)
    wrong = []
    for name, feature in probe.FEATURES.items():
        placed = Artefact(made.names[probe.entry(name)], {"code": made.cubin}).placed(tmp_path, name)
        y = host.output(4 * probe.THREADS)
        x = host.upload(probe.inputs())
        host.launch(host.load_placed(placed), (1, 1, 1), (probe.THREADS, 1, 1), [x, y], feature.shared)
        if not np.array_equal(host.download(y).view(np.uint32), probe.expected(name, probe.inputs())):
            wrong.append(name)
    source.close()
    assert not wrong
