"""A file that was quantized with an importance matrix, against its source: with the matrix, without it, and damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.audit.record import Audit
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.report.writer import Kind
from tests.support.audits import TINY, ids, rule, run
from tests.support.importance_files import dat, hugging_face, imatrix_gguf
from tests.support.shown import json_of, text_of
from tests.support.tools import command_here, write_model

K, N = 512, 64
TYPES = ("Q4_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_XS", "IQ3_XXS")


class Model:
    """A source, its importance matrix in both formats, and llama.cpp's quantization of them: a tensor of each type, one
    that the matrix has no entry for, one of a type that it does not change, and one that is not quantized."""

    def __init__(self, folder: Path, llama: Llama) -> None:
        rng = np.random.default_rng(2)
        x = {name: rng.standard_normal((N, K)).astype(np.float32) for name in (*TYPES, "plain", "Q8_0", "norm")}
        sums = {
            name: np.exp(2 * rng.standard_normal(K)).astype(np.float32) for name in x if name not in ("plain", "norm")
        }
        calls = 37
        self.dat = dat(folder / "i.dat", {name: (values, calls) for name, values in sums.items()})
        self.gguf = imatrix_gguf(
            folder / "i.gguf", {n: (v[None], np.array([calls], np.float32)) for n, v in sums.items()}
        )
        self.source = write_model(folder / "s.gguf", {name: (values, "F32") for name, values in x.items()})
        self.tensors = {
            name: (llama.quantize(FORMATS[name].type_id, x[name], sums[name] / np.float32(calls)), name)
            for name in (*TYPES, "Q8_0")
        }
        self.tensors["plain"] = llama.quantize(2, x["plain"]), "Q4_0"
        self.tensors["norm"] = x["norm"].astype(np.float16), "F16"
        self.path = write_model(folder / "m.gguf", self.tensors)

    def damaged(self, path: Path, names: Sequence[str], change: Callable[[np.ndarray], None]) -> Path:
        """A copy with the rows of some tensors changed in place."""
        made = {name: (rows.copy(), kind) for name, (rows, kind) in self.tensors.items()}
        for name in names:
            change(made[name][0])
        return write_model(path, made)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, llama: Llama) -> Model:
    return Model(tmp_path_factory.mktemp("imatrix"), llama)


def outcomes(result: Audit) -> dict[str, str]:
    return {c.tensor.name: c.outcome for c in result.comparisons}


@pytest.mark.parametrize("kind", ["dat", "gguf"])
def test_with_the_matrix_every_byte_is_proven(kind: str, model: Model) -> None:
    result = run(model.path, source=model.source, imatrix=getattr(model, kind), readers=False)
    assert set(outcomes(result).values()) == {"same"}
    assert (result.exit_code, result.verdict, result.findings) == (0, "clean", ())
    assert f"{len(model.tensors)} of {len(model.tensors)} tensors are, byte for byte" in text_of(Kind.AUDIT, result)
    assert json_of(Kind.AUDIT, result)["header"]["imatrix sha256"] == result.header.imatrix_sha256 != ""


def test_without_it_nothing_is_wrong_and_nothing_is_proven(model: Model) -> None:
    result = run(model.path, source=model.source, readers=False)
    expected = dict.fromkeys(TYPES, "possible") | dict.fromkeys(("plain", "Q8_0", "norm"), "same")
    assert outcomes(result) == expected
    assert ids(result) == [rule("source-importance")]
    assert result.exit_code == 0
    text = text_of(Kind.AUDIT, result)
    assert f"3 of 9 tensors are, byte for byte, what llama.cpp makes of it; {len(TYPES)} may be" in text
    assert "not proven" in text
    worst = {c.tensor.name: c.error / c.made_error for c in result.comparisons if c.error}
    assert all(0.5 < ratio < 3 for ratio in worst.values()), worst


def test_another_matrix_is_not_the_one(model: Model, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    other = dat(tmp_path / "i.dat", {name: (np.exp(rng.standard_normal(K)).astype(np.float32), 1) for name in TYPES})
    result = run(model.path, source=model.source, imatrix=other, readers=False, tensor="^Q4_0|^Q4_K|XXS")
    assert set(outcomes(result).values()) == {"differs"}
    assert set(ids(result)) == {rule("source-differs")}
    assert result.exit_code == 1


def swap(rows: np.ndarray) -> None:
    rows[[3, 4]] = rows[[4, 3]]


def double_a_scale(rows: np.ndarray) -> None:
    rows[7, :2] = (rows[7, :2].view("<f2") * np.float16(2)).view(np.uint8)


def test_two_rows_exchanged(model: Model, tmp_path: Path) -> None:
    result = run(model.damaged(tmp_path / "m.gguf", TYPES, swap), source=model.source, readers=False)
    assert {name for name, outcome in outcomes(result).items() if outcome == "impossible"} == set(TYPES)
    assert result.exit_code == 1
    found = [f for f in result.findings if f.severity == "error"]
    assert {f.id for f in found} == {rule("source-exchanged")}
    assert {f.owner for f in found if ": row 3 is the source's row " in f.found} == set(TYPES)


def test_one_scale_doubled(model: Model, tmp_path: Path) -> None:
    names = [name for name in TYPES if name != "Q6_K"]  # whose scale lies at its end
    result = run(model.damaged(tmp_path / "m.gguf", names, double_a_scale), source=model.source, readers=False)
    assert {name for name, outcome in outcomes(result).items() if outcome == "impossible"} == set(names)
    assert {f.owner for f in result.findings if "row 7 block 0" in f.found and f.severity == "error"} == set(names)


def test_a_few_blocks_of_a_plain_tensor_are_damage(model: Model, tmp_path: Path) -> None:
    """An importance matrix would have changed nearly all blocks."""

    def change(rows: np.ndarray) -> None:
        rows[9, 5] ^= 0x11

    path = model.damaged(tmp_path / "m.gguf", ("plain", "Q8_0"), change)
    result = run(path, source=model.source, readers=False, tensor="plain|Q8_0")
    assert outcomes(result) == {"plain": "differs", "Q8_0": "differs"}
    assert ids(result) == [rule("source-differs")] * 2


def test_a_matrix_of_another_model(model: Model, tmp_path: Path) -> None:
    one = dat(tmp_path / "i.dat", {"Q4_0": (np.ones(K // 2, np.float32), 1)})
    result = run(model.path, source=model.source, imatrix=one, readers=False, tensor="^Q4_0$")
    assert result.exit_code == 5
    assert "256 values for it, not 512" in result.unverified[0][1]
    result = run(model.path, source=model.source, imatrix=one, readers=False, tensor="^IQ3_XXS$")
    assert "no entry for it, and IQ3_XXS needs one" in result.unverified[0][1]


def test_each_expert_is_quantized_with_its_own(llama: Llama, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 8, 256)).astype(np.float32)
    sums, counts = np.exp(2 * rng.standard_normal((3, 256))).astype(np.float32), np.array([5, 0, 11], np.float32)
    weights = [sums[0] / counts[0], np.ones(256, np.float32), sums[2] / counts[2]]
    made = np.stack([llama.quantize(12, rows, w) for rows, w in zip(x, weights, strict=True)])
    source = write_model(tmp_path / "s.gguf", {"e": (x, "F32")})
    path = write_model(tmp_path / "m.gguf", {"e": (made, "Q4_K")})
    matrix = imatrix_gguf(tmp_path / "i.gguf", {"e": (sums, counts)})
    assert outcomes(run(path, source=source, imatrix=matrix, readers=False)) == {"e": "same"}
    swapped = imatrix_gguf(tmp_path / "j.gguf", {"e": (sums[::-1], counts)})
    assert outcomes(run(path, source=source, imatrix=swapped, readers=False)) == {"e": "differs"}


def test_usage() -> None:
    done = command_here("audit", TINY["Q4_0"], "--imatrix", TINY["F16"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = command_here("audit", TINY["Q4_0"], "--source", TINY["F16"], "--imatrix", TINY["F16"], "--no-readers")
    assert done.returncode == 4
    assert "not an importance matrix" in done.stderr


@pytest.mark.parametrize("split", [False, True])
def test_safetensors_as_the_source(split: bool, tmp_path: Path) -> None:
    result = run(TINY["Q4_0"], source=hugging_face(tmp_path, split), readers=False)
    assert (result.exit_code, result.findings, result.unverified) == (0, (), [])
    assert set(outcomes(result).values()) == {"same"}


def test_rows_of_q_in_the_framework_s_order_are_found(tmp_path: Path) -> None:
    """The fixture's own file would pass as a source only with the permutation."""
    folder = hugging_face(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"layers.0.self_attn.q_proj", b"layers.0.self_attn.o_proj_").replace(
        b"layers.0.self_attn.o_proj.", b"layers.0.self_attn.q_proj.").replace(
        b"layers.0.self_attn.o_proj_", b"layers.0.self_attn.o_proj"))  # fmt: skip
    found = outcomes(run(TINY["Q4_0"], source=folder, readers=False))
    assert found["blk.0.attn_q.weight"] in ("differs", "impossible")
    assert found["blk.0.attn_output.weight"] in ("differs", "impossible")


def test_a_file_in_half_precision_lay_between(tmp_path: Path) -> None:
    """The original has digits that F16 does not, and the file was quantized from its F16."""
    result = run(TINY["Q4_0"], source=hugging_face(tmp_path, finer=True), readers=False)
    assert set(outcomes(result).values()) == {"same"}
    assert "F16" in {c.through for c in result.comparisons}  # of some tensors the digits change no code
    assert "by way of F16" in text_of(Kind.AUDIT, result)


def test_rows_that_are_too_long_to_be_judged(tmp_path: Path, llama: Llama) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((1, (1 << 20) + 256)).astype(np.float32)
    made = llama.quantize(2, x, np.exp(rng.standard_normal(x.shape[1])).astype(np.float32))
    source = write_model(tmp_path / "s.gguf", {"w": (x, "F32")})
    result = run(write_model(tmp_path / "m.gguf", {"w": (made, "Q4_0")}), source=source, readers=False)
    assert result.exit_code == 5
    assert "cannot be judged without --imatrix" in result.unverified[0][1]
