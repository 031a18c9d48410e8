"""Tensors whose codes have lost their sign."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.audit.audit import audit
from gguf_verify.audit.record import AuditOptions
from gguf_verify.formats import FORMATS
from gguf_verify.gguf.records import Finding
from gguf_verify.llama import Llama
from tests.support import corpus

ROWS, K = 32, 256


def findings(path: Path, llama: Llama, name: str, *lost: bool) -> list[Finding]:
    """Of a file with a tensor of a type for each of `lost`: whether its values have lost their sign."""
    fmt, rng = FORMATS[name], np.random.default_rng(1)
    infos, data, at = [], [], 0
    for i, without in enumerate(lost):
        x = rng.standard_normal((ROWS, K)).astype(np.float32)
        rows = llama.quantize(fmt.type_id, np.abs(x) if without else x, np.ones(K, np.float32)).tobytes()
        infos.append(corpus.info(f"t{i}.weight", [K, ROWS], fmt.type_id, at))
        data.append(rows + bytes(-len(rows) % 32))
        at += len(data[-1])
    path.write_bytes(corpus.gguf([], infos, data).data)
    found = audit(path, AuditOptions(readers=False, progress=False))
    assert found.exit_code == (1 if any(f.severity == "error" for f in found.findings) else 0)
    return [f for f in found.findings if "sign" in f.id or "one-sided" in f.id]


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K"])
def test_signs_lost(name: str, llama: Llama, tmp_path: Path) -> None:
    (lost,) = findings(tmp_path / "lost.gguf", llama, name, True, True)
    assert lost.severity == "error"
    assert lost.id.endswith("signs-lost")
    assert findings(tmp_path / "kept.gguf", llama, name, False, False) == []
    (one,) = findings(tmp_path / "one.gguf", llama, name, False, True)
    assert (one.severity, one.owner) == ("warning", "t1.weight")


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_types_with_a_minimum_have_no_signs(name: str, llama: Llama, tmp_path: Path) -> None:
    assert findings(tmp_path / "positive.gguf", llama, name, True, True) == []
