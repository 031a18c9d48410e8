"""Tensors that were made of other rows of the source, or of another tensor of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gguf_verify.gguf.model import open_model
from gguf_verify.llama.library import Llama
from tests.support.audits import TINY, rule, run
from tests.support.tools import write_model

Q4_0, F16 = TINY["Q4_0"], TINY["F16"]
Bytes = npt.NDArray[np.uint8]


def changed(path: Path, rows: dict[str, Bytes]) -> Path:
    """The fixture with other rows in some of its tensors."""
    raw = bytearray(Q4_0.read_bytes())
    with open_model(Q4_0) as model:
        for name, of in rows.items():
            tensor = model.tensors[name]
            raw[tensor.offset : tensor.offset + tensor.nbytes] = of.tobytes()
    path.write_bytes(raw)
    return path


def rows_of(name: str, order: Sequence[int] | npt.NDArray[np.int64] | None = None) -> Bytes:
    with open_model(Q4_0) as model:
        tensor = model.tensors[name]
        rows = tensor.raw.reshape(tensor.n_rows, -1)
        return np.array(rows if order is None else rows[order])


def said(path: Path, source: Path = F16) -> dict[str, str]:
    """Tensor → the text of its only finding."""
    result = run(path, source=source, readers=False)
    assert {f.id for f in result.findings} == {rule("source-exchanged")}
    assert result.exit_code == 1
    return {f.owner: f.found.removeprefix(f"'{f.owner}' ") for f in result.findings}


def test_gate_and_up_exchanged(tmp_path: Path) -> None:
    gate, up = "blk.1.ffn_gate.weight", "blk.1.ffn_up.weight"
    found = said(changed(tmp_path / "m.gguf", {gate: rows_of(up), up: rows_of(gate)}))
    assert found == {
        gate: f"is, byte for byte, llama.cpp's quantization of the source's '{up}'",
        up: f"is, byte for byte, llama.cpp's quantization of the source's '{gate}'",
    }


def test_rows_permuted_as_for_a_rotary_embedding(tmp_path: Path) -> None:
    name, order = "blk.0.attn_k.weight", np.arange(128).reshape(4, 2, 16).swapaxes(1, 2).reshape(-1)
    found = said(changed(tmp_path / "m.gguf", {name: rows_of(name, order)}))[name]
    assert found == (
        "is, byte for byte, llama.cpp's quantization of the source's rows in another order (120 of 128 moved): row 1 "
        "is the source's row 16, row 2 is the source's row 1, row 3 is the source's row 17 …"
    )


def test_two_rows_exchanged(tmp_path: Path) -> None:
    name, order = "blk.2.ffn_down.weight", np.arange(256)
    order[[37, 201]] = 201, 37
    found = said(changed(tmp_path / "m.gguf", {name: rows_of(name, order)}))[name]
    assert found.endswith("(2 of 256 moved): row 37 is the source's row 201, row 201 is the source's row 37")


def test_other_weights_are_no_exchange(llama: Llama, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal((64, 256)).astype(np.float32) for _ in range(2))
    source = write_model(tmp_path / "s.gguf", {"v": (x, "F32"), "w": (x * 2, "F32")})
    path = write_model(tmp_path / "m.gguf", {"v": (llama.quantize(2, x), "Q4_0"), "w": (llama.quantize(2, y), "Q4_0")})
    ids = {f.id for f in run(path, source=source, readers=False).findings}
    assert ids
    assert rule("source-exchanged") not in ids
