"""Tensors that never use codes which llama.cpp's quantizer would, and tensors whose codes have lost their sign."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.audit.audit import audit
from gguf_verify.audit.record import AuditOptions
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.records import Finding
from gguf_verify.gguf.rules import RULES
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import LlamaRefused
from tests.support import corpus
from tests.support.tools import FIXTURES

Bytes = npt.NDArray[np.uint8]
ROWS, K = 256, 512


def quantized(llama: Llama, name: str, seed: int = 1, rows: int = ROWS) -> Bytes:
    x = np.random.default_rng(seed).standard_normal((rows, K)).astype(np.float32)
    try:
        return llama.quantize(FORMATS[name].type_id, x)
    except LlamaRefused:
        return llama.quantize(FORMATS[name].type_id, x, np.ones(K, np.float32))


def findings(path: Path, *tensors: tuple[str, Bytes]) -> list[Finding]:
    infos, data, at = [], [], 0
    for i, (name, rows) in enumerate(tensors):
        raw = rows.tobytes()
        k = rows.shape[1] // FORMATS[name].block_bytes * FORMATS[name].block_size
        infos.append(corpus.info(f"t{i}.weight", [k, len(rows)], FORMATS[name].type_id, at))
        data.append(raw + bytes(-len(raw) % 32))
        at += len(data[-1])
    path.write_bytes(corpus.gguf([], infos, data).data)
    found = audit(path, AuditOptions(readers=False, progress=False))
    assert found.exit_code == (1 if any(f.severity == "error" for f in found.findings) else 0)
    return list(found.findings)


def unused(path: Path, *tensors: tuple[str, Bytes]) -> list[Finding]:
    return [f for f in findings(path, *tensors) if f.id.endswith("codes-unused")]


@pytest.mark.parametrize("names", [["Q4_0", "Q8_0"], [*FORMATS]], ids=["two", "all"])
def test_what_llama_quantizes_uses_them(names: list[str], llama: Llama, tmp_path: Path) -> None:
    assert unused(tmp_path / "all.gguf", *((name, quantized(llama, name)) for name in names)) == []


def altered(name: str, rows: Bytes, field: str, change: Callable[[npt.NDArray[np.generic]], object]) -> Bytes:
    fmt = FORMATS[name]
    blocks = rows.reshape(-1, fmt.block_bytes).copy()
    structs = fmt.view(blocks)
    structs[field] = change(structs[field])
    return blocks.reshape(rows.shape)


def clamped(qs: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    low, high = (np.minimum(part, 14) for part in (qs & 15, qs >> 4))  # type: ignore[operator]
    return np.asarray(low | high << 4, np.uint8)


#: Type, the altered field, the change, and a part of the finding.
WRONG: dict[str, tuple[str, str, Callable[..., object], str]] = {
    "clamped to 0…14": ("Q4_0", "qs", clamped, "code 15"),
    "lowest bit": ("Q4_K", "qs", lambda qs: qs & 0xEE, "8 of 16 codes: 1, 3, 5, 7, 9, 11 …"),
    "fifth bits": ("Q5_1", "qh", np.zeros_like, "16 of 32 codes: 16, 17, 18, 19, 20, 21 …"),
    "seven bits": ("Q8_0", "qs", lambda qs: np.clip(qs, -64, 63), " of 256 codes: -"),
    "high bits": ("Q6_K", "qh", lambda qh: qh & 0xAA, " of 64 codes: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_codes_that_are_lost(case: str, llama: Llama, tmp_path: Path) -> None:
    name, field, change, said = WRONG[case]
    right = quantized(llama, name, 2)
    wrong = altered(name, quantized(llama, name), field, change)
    (one,) = unused(tmp_path / "one.gguf", (name, right), (name, wrong))
    assert (one.severity, one.owner) == ("warning", "t1.weight")
    assert said in one.line()
    (both,) = unused(tmp_path / "both.gguf", (name, wrong), (name, wrong))
    assert f"all 2 tensors of {name} never use" in both.line()


def test_one_finding_of_a_type(llama: Llama, tmp_path: Path) -> None:
    """However many of its tensors lack which codes."""
    wrong = [altered("Q8_0", quantized(llama, "Q8_0", i), "qs", partial(np.clip, min=-60 - i, max=60)) for i in (1, 9)]
    (found,) = unused(tmp_path / "m.gguf", ("Q8_0", quantized(llama, "Q8_0")), *(("Q8_0", rows) for rows in wrong))
    assert found.owner == "t1.weight"
    assert found.found.startswith("2 of 3 tensors of Q8_0")
    assert "the first" in found.found
    assert "quantized before" not in found.found


@pytest.mark.parametrize(("ftype", "kind"), [(7, "Q8_0"), (8, "Q5_0")], ids=["Q8_0", "Q5_0"])
def test_values_that_had_been_quantized_before(ftype: int, kind: str, llama: Llama, tmp_path: Path) -> None:
    """llama.cpp makes such tensors of a Q4_0, whose blocks hold 16 values. In Q5_0 they are every other code, as where
    a bit was lost, so nothing tells which it was."""
    path = tmp_path / "again.gguf"
    llama.quantize_file(FIXTURES / "tiny-Q4_0.gguf", path, ftype, True)
    of_file = audit(path, AuditOptions(readers=False, progress=False)).findings
    (found,) = (f for f in of_file if f.id.endswith("codes-unused"))
    assert found.found.startswith(f"23 of 23 tensors of {kind} lack codes: the first, 'output.weight', never uses ")
    said = "hold at most 16 different codes in a block of 32, as tensors quantized from quantized values do"
    assert (said in found.found) == (kind == "Q8_0")
    assert RULES["codes-unused"].cause.startswith("The tensor was quantized from values that had been quantized before")


def test_few_blocks_show_nothing(llama: Llama, tmp_path: Path) -> None:
    """Of so few blocks, chance could leave a code out."""
    wrong = altered("Q4_0", quantized(llama, "Q4_0", rows=4), "qs", clamped)
    assert unused(tmp_path / "few.gguf", ("Q4_0", wrong)) == []


def signs(path: Path, llama: Llama, name: str, *lost: bool) -> list[Finding]:
    """Of a file with a tensor of a type for each of `lost`: whether its values have lost their sign."""
    x = np.random.default_rng(1).standard_normal((len(lost), 32, 256)).astype(np.float32)
    of = [np.abs(each) if without else each for each, without in zip(x, lost, strict=True)]
    made = [llama.quantize(FORMATS[name].type_id, each, np.ones(256, np.float32)) for each in of]
    found = findings(path, *((name, rows.reshape(32, -1)) for rows in made))
    return [f for f in found if "sign" in f.id or "one-sided" in f.id]


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K"])
def test_signs_lost(name: str, llama: Llama, tmp_path: Path) -> None:
    (lost,) = signs(tmp_path / "lost.gguf", llama, name, True, True)
    assert lost.severity == "error"
    assert lost.id.endswith("signs-lost")
    assert signs(tmp_path / "kept.gguf", llama, name, False, False) == []
    (one,) = signs(tmp_path / "one.gguf", llama, name, False, True)
    assert (one.severity, one.owner) == ("warning", "t1.weight")


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_types_with_a_minimum_have_no_signs(name: str, llama: Llama, tmp_path: Path) -> None:
    assert signs(tmp_path / "positive.gguf", llama, name, True, True) == []
