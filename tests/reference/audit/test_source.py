"""A file against the file that it was quantized from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.gguf.model import open_model
from gguf_verify.llama.library import Llama
from gguf_verify.report.writer import Kind
from tests.support.audits import TINY, rule, run
from tests.support.shown import text_of
from tests.support.tools import patched_block, write_model


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1"])
def test_the_fixtures_are_what_llama_makes_of_their_source(name: str) -> None:
    result = run(TINY[name], source=TINY["F16"])
    assert result.exit_code == 0
    assert result.findings == ()
    assert len(result.comparisons) == 30
    assert all(c.result is not None and c.result.differing == 0 for c in result.comparisons)
    assert "30 of 30 tensors are, byte for byte" in text_of(Kind.AUDIT, result)


def test_blocks_that_are_not_the_sources(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "a.gguf", "blk.2.ffn_down.weight", 9, 4, 7, b"\x5a")
    path = patched_block(path, tmp_path / "m.gguf", "blk.2.ffn_down.weight", 200, 0, 3, b"\x5a")
    result = run(path, source=TINY["F16"], readers=False)
    (found,) = result.findings
    assert found.id == rule("source-differs")
    assert "2 of " in found.found
    assert "row 9 block 4" in found.found
    (different,) = [c for c in result.comparisons if c.result is not None and c.result.differing]
    assert different.first == (9, 4)
    assert different.xrays is not None
    ours, made = different.xrays
    assert [i for i, (a, b) in enumerate(zip(ours.raw, made.raw, strict=True)) if a != b] == [7]
    text = text_of(Kind.AUDIT, result)
    assert "blk.2.ffn_down.weight" in text
    assert "1 of 18 bytes, " in text
    assert result.exit_code == 1


def test_elements_that_are_not_the_sources(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((16, 64)).astype(np.float32)
    source = write_model(tmp_path / "s.gguf", {"a": (x, "F32"), "b": (x, "F32"), "c": (x, "F32")})
    half, wrong = x.astype(np.float16), x.astype(np.float16)
    wrong[3, 5] += 1
    path = write_model(tmp_path / "m.gguf", {"a": (half, "F16"), "b": (wrong, "F16"), "c": (x, "F32")})
    result = run(path, source=source, readers=False)
    (found,) = result.findings
    assert found.owner == "b"
    assert "1 of 1,024 values" in found.found
    assert "row 3 value 5" in found.found


def test_tensors_that_only_one_file_has(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 64)).astype(np.float32)
    source = write_model(tmp_path / "s.gguf", {"a": (x, "F32"), "other": (x, "F32"), "turned": (x, "F32")})
    own = {"a": (x, "F32"), "turned": (x.reshape(2, 128), "F32"), "new": (-x, "F32")}
    path = write_model(tmp_path / "m.gguf", own)
    result = run(path, source=source, readers=False)
    assert sorted((f.id, f.owner) for f in result.findings) == [
        (rule("source-missing"), "new"), (rule("source-missing"), "turned"), (rule("source-left"), "other"),
    ]  # fmt: skip
    assert result.exit_code == 1


def test_a_source_that_is_quantized_itself(tmp_path: Path, llama: Llama) -> None:
    """A type that is in neither file is decoded first, as llama.cpp does when it quantizes again."""
    path = tmp_path / "m.gguf"
    llama.quantize_file(TINY["Q5_1"], path, 2, False)
    result = run(path, source=TINY["Q5_1"], readers=False)
    by_type = {c.tensor.type.name: c for c in result.comparisons}
    assert set(by_type) >= {"Q4_0", "F32"}
    covered = [c for c in result.comparisons if c.result is not None]
    assert all(c.result is not None and c.result.differing == 0 for c in covered)


def test_metadata_that_name_an_importance_matrix(tmp_path: Path, llama: Llama, rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 256), np.float32)
    made = llama.quantize(2, x, np.exp(rng.standard_normal(256)).astype(np.float32))
    source = write_model(tmp_path / "s.gguf", {"w": (x, "F32")})
    path = write_model(tmp_path / "m.gguf", {"w": (made, "Q4_0")}, {"quantize.imatrix.file": "words.dat"})
    result = run(path, source=source, readers=False)
    (found,) = result.findings
    assert (found.id, found.severity, result.exit_code) == (rule("source-importance"), "note", 0)
    assert "the metadata list one" in found.found
    assert [c.outcome for c in result.comparisons] == ["possible"]


def test_differences_far_into_a_tensor(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    """A tensor is quantized anew in chunks of 2^20 values; here the second and the third hold differences."""
    x = rng.standard_normal((2500, 1024), np.float32)
    made = llama.quantize(8, x)
    made[1100, 34 * 5 + 7] ^= 1
    made[1100, 34 * 5 + 9] ^= 1
    made[1101, 34 * 2] ^= 1
    made[2499, -1] ^= 1
    source = write_model(tmp_path / "s.gguf", {"w": (x, "F32")})
    (found,) = run(write_model(tmp_path / "m.gguf", {"w": (made, "Q8_0")}), source=source, readers=False).findings
    assert "3 of 80,000 blocks of 'w' differ, the first row 1100 block 5: " in found.found
    with open_model(tmp_path / "m.gguf") as model:
        assert found.start == model.tensors["w"].block_offset(1100, 5)


@pytest.mark.parametrize("k", [5 << 20, 32 * 131101], ids=["even pieces", "a prime number of blocks"])
def test_a_row_that_is_split(k: int, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    half = rng.standard_normal(k, np.float32).astype(np.float16)
    made = llama.quantize(2, half.astype(np.float32)[None])
    source = write_model(tmp_path / "s.gguf", {"w": (half[None], "F16")})
    result = run(write_model(tmp_path / "m.gguf", {"w": (made, "Q4_0")}), source=source, readers=False)
    assert (result.exit_code, [c.first for c in result.comparisons]) == (0, [None])
    made[0, 18 * 123_456 + 3] ^= 0x10
    result = run(write_model(tmp_path / "m.gguf", {"w": (made, "Q4_0")}), source=source, readers=False)
    assert result.comparisons[0].first == (0, 123_456)
    assert f"1 of {k // 32:,} blocks of 'w' differ, the first row 0 block 123456" in result.findings[0].found


@pytest.mark.parametrize("kind", ["Q8_1", "Q8_K", "I32"])
@pytest.mark.parametrize("target", ["Q4_0", "F32"])
def test_a_source_that_llama_cannot_decode(
    kind: str, target: str, llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gguf.GGML_QUANT_SIZES, gguf.GGMLQuantizationType.Q8_1, (32, 36))  # it says 40 bytes
    x = rng.standard_normal((4, 256), np.float32)
    raw = np.zeros((4, {"Q8_1": 288, "Q8_K": 292, "I32": 1024}[kind]), np.uint8)
    first = (llama.quantize(2, x), "Q4_0") if target == "Q4_0" else (x, "F32")
    source = write_model(tmp_path / "s.gguf", {"a": (raw, kind), "b": (x, "F32"), "c": (x, "F32")})
    wrong = x.copy()
    wrong[2, 7] += 1
    for last, code in ((x, 5), (wrong, 1)):
        path = write_model(tmp_path / "m.gguf", {"a": first, "b": (x, "F32"), "c": (last, "F32")})
        result = run(path, source=source, readers=False)
        assert (result.exit_code, result.fault) == (code, None)
        why = f"not compared with the source: llama.cpp has no conversion from {kind}, the source's type"
        assert result.unverified == [("a", why)]
        assert [c.first for c in result.comparisons] == [None, None, (2, 7) if code == 1 else None]
        assert [c.result is None for c in result.comparisons] == [True, False, False]
        text = text_of(Kind.AUDIT, result)
        assert f"NOT VERIFIED a: {why}" in text
        assert f"{2 if code == 5 else 1} of 3 tensors are, byte for byte" in text


def test_a_type_that_llama_does_not_quantize_to(tmp_path: Path) -> None:
    x = np.ones((4, 256), np.float32)
    source = write_model(tmp_path / "s.gguf", {"a": (x, "F32"), "b": (x, "F32")})
    raw = np.zeros((4, 292), np.uint8)
    path = write_model(tmp_path / "m.gguf", {"a": (x.view(np.int32), "I32"), "b": (raw, "Q8_K")})
    result = run(path, source=source, readers=False)
    assert result.exit_code == 5
    assert [c.unverified for c in result.comparisons] == [
        "type I32: llama.cpp does not quantize to it", "type Q8_K: llama.cpp does not quantize to it",
    ]  # fmt: skip


# ---- exchanged -------------------------------------------------------------------------------------------------------
# Tensors that were made of other rows of the source, or of another tensor of it.


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
