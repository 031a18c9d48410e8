"""A right kernel of a definition that keeps something in a half is verified at all that the plan of probes draws: no
weights, activations or shapes are drawn whose products that half cannot hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.results.options import Options
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.verification import verify

KERNEL = """
import numpy as np
from gguf_verify import kernel
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.exact import product

DEFINITION = declared({semantics!r})

@kernel([{kind!r}], semantics={semantics!r})
def right(weights, activations, shape):
    blocks = activations.view(np.uint8).reshape(shape.m, -1)
    return product(DEFINITION, FORMATS[shape.format], weights, blocks).exact.astype(np.float32)
"""
HALVES = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name, semantics in SEMANTICS.items() if semantics.plain and not semantics.of_elements
    for kind, fmt in FORMATS.items() if semantics.term.rounded(fmt) == "products"
]  # fmt: skip


def test_there_are_such() -> None:
    assert len(HALVES) >= 2


@pytest.mark.parametrize(("semantics", "kind"), HALVES)
def test_a_right_kernel_is_verified(semantics: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.format(semantics=semantics, kind=kind))
    options = Options(probes="brief", progress=False)
    report = verify(Drawn((kind,), n=(33,), k=(64,)), f"{tmp_path / 'kernel.py'}:right", "cpu", options=options)
    assert report.exit_code == 0, [f.what for rung in report.rungs for f in rung.failures][:3]
