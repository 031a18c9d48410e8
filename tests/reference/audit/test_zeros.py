"""Runs of zero bytes, and matrices of one value: lost data, and zeros of a healthy file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_verify.audit.record import Audit
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.records import Finding
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.support.array_types import Floats
from gguf_verify.verification import verify
from tests.support.audits import TINY, bytes_rung, rule, run, scanned
from tests.support.tools import patched, split_model, write_model

Q4_0 = TINY["Q4_0"]
PAGE = 4096


def lost(source: Path, target: Path, start: int, nbytes: int) -> Audit:
    return run(patched(source, target, start, bytes(nbytes)), readers=False)


def zeros(result: Audit) -> list[Finding]:
    return [f for f in result.findings if f.id in (rule("zero-bytes"), rule("one-value"))]


def model(path: Path, tensors: Mapping[str, Floats], types: list[int] | None = None) -> Audit:
    """The audit of a file of float32 tensors, with as many tokens as types of tokens."""
    writer = gguf.GGUFWriter(path, "test")
    if types is not None:
        writer.add_token_list([f"t{i}" for i in range(len(types))])
        writer.add_token_types(types)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return run(path, readers=False)


def drawn(*shape: int) -> Floats:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_a_hole_in_the_data(tmp_path: Path) -> None:
    start = Q4_0.stat().st_size // 2
    (found,) = zeros(lost(Q4_0, tmp_path / "m.gguf", start, 1 << 18))
    assert (found.id, found.severity, found.start, found.stop) == (
        rule("zero-bytes"), "warning", start, start + (1 << 18),
    )  # fmt: skip
    assert found.found == (
        f"a run of 262,144 zero bytes: 'blk.1.ffn_down.weight' from byte {start} on, all of 'blk.1.ffn_gate.weight', "
        f"all of 'blk.1.ffn_norm.weight', 'blk.1.ffn_up.weight' up to byte {start + (1 << 18)}"
    )


@pytest.mark.parametrize("nbytes", [PAGE + 64, 300_000])
def test_the_end_of_a_file_that_never_came(nbytes: int, tmp_path: Path) -> None:
    size = Q4_0.stat().st_size
    (found,) = zeros(result := lost(Q4_0, tmp_path / "m.gguf", size - nbytes, nbytes))
    assert (found.start, found.stop) == (size - nbytes, size)
    assert result.verdict == "warnings"


def test_a_hole_over_two_parts_of_a_split_model(tmp_path: Path) -> None:
    _, second, *_ = split_model(Q4_0, tmp_path, 12)
    patched(second, second, second.stat().st_size - 9000, bytes(9000))
    (found,) = zeros(run(tmp_path / "split-00001-of-00003.gguf", readers=False))
    assert (found.part, found.stop) == (1, second.stat().st_size)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [PAGE - 1, PAGE, 5000, 1 << 17, 9 << 20])
@pytest.mark.parametrize("at", [1, 70_001, (1 << 17) - 5, (4 << 20) - 3000])
def test_runs_are_found_wherever_they_lie(at: int, n: int, threads: int, llama: Llama, tmp_path: Path) -> None:
    """In and across the pieces that threads take, and the buffers that they read."""
    raw = np.full((2048, 8192), 7, np.uint8)
    raw.reshape(-1)[at : at + n] = 0
    scan = scanned(write_model(tmp_path / "m.gguf", {"w": (raw.view(np.float32), "F32")}), llama, threads)
    assert (scan.zeros_at_start, scan.zeros_at_end) == (0, 0)
    assert scan.first_runs == ([[at, at + n]] if n >= PAGE else [])


@pytest.mark.parametrize("threads", [1, 2])
def test_zeros_at_both_ends(threads: int, llama: Llama, tmp_path: Path) -> None:
    raw = np.full((2048, 8192), 7, np.uint8)
    flat = raw.reshape(-1)
    flat[: 5 << 20] = flat[-(6 << 20) :] = 0
    scan = scanned(write_model(tmp_path / "m.gguf", {"w": (raw.view(np.float32), "F32")}), llama, threads)
    assert (scan.zeros_at_start, scan.zeros_at_end, scan.first_runs) == (5 << 20, 6 << 20, [])


def test_many_runs_are_counted(llama: Llama, tmp_path: Path) -> None:
    raw = np.full(1 << 20, 7, np.uint8)
    for i in range(30):
        raw[i * 20_000 + 4 : i * 20_000 + 10_004] = 0
    scan = scanned(write_model(tmp_path / "m.gguf", {"w": (raw.view(np.float32)[None], "F32")}), llama)
    assert (scan.runs, len(scan.first_runs), scan.first_runs[20]) == (30, 21, [400_004, 410_004])


@pytest.mark.parametrize("name", ["blk.2.attn_q.weight", "blk.0.attn_k.weight"])
def test_a_matrix_of_zeros(name: str, tmp_path: Path) -> None:
    with open_model(Q4_0) as fixture:
        tensor = fixture.tensors[name]
        start, nbytes = tensor.offset, tensor.nbytes
    (found,) = zeros(lost(Q4_0, tmp_path / "m.gguf", start, nbytes))
    assert (found.id, found.found) == (rule("zero-bytes"), f"a run of {nbytes:,} zero bytes: all of '{name}'")


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0"])
def test_a_matrix_of_zeros_that_are_no_zero_bytes(kind: str, llama: Llama, tmp_path: Path) -> None:
    """llama.cpp's quantizer writes -0 as the scale of such a block."""
    number = {"Q4_0": 2, "Q5_0": 6}[kind]
    some, none = (llama.quantize(number, x) for x in (drawn(64, 64), np.zeros((64, 64), np.float32)))
    assert none.any()
    path = write_model(tmp_path / "m.gguf", {"a.weight": (some, kind), "b.weight": (none, kind)})
    (found,) = zeros(run(path, readers=False))
    assert (found.id, found.owner) == (rule("one-value"), "b.weight")
    assert found.found == f"every value of 'b.weight' ({kind}) is zero"


def test_a_matrix_of_one_value(tmp_path: Path) -> None:
    result = model(tmp_path / "m.gguf", {"a.weight": drawn(32, 64), "b.weight": np.full((32, 64), 0.5, np.float32)})
    assert [f.found for f in zeros(result)] == ["every value of 'b.weight' (F32) is 0.5"]


def test_a_matrix_whose_rows_are_all_the_same(tmp_path: Path) -> None:
    result = model(tmp_path / "m.gguf", {"a.weight": np.repeat(drawn(1, 64), 32, axis=0)})
    assert [f.found for f in zeros(result)] == ["all 32 rows of 'a.weight' (F32) are the same"]


def test_a_norm_of_zeros(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_norm.weight": np.zeros(64, np.float32), "w": drawn(32, 64)}
    (found,) = zeros(model(tmp_path / "m.gguf", tensors))
    assert found.found == "every value of 'blk.0.attn_norm.weight' (F32) is zero"


def healthy() -> dict[str, dict[str, Floats]]:
    """Values that are zero, or the same, in healthy files."""
    unused, pruned, padded = drawn(512, 64), drawn(512, 64), drawn(512, 64)
    unused[3:9] = 0  # tokens that were never trained
    pruned[[5, 100, 101, 102, 400]] = 0  # neurons
    padded[-31:] = 0  # rows that round the size up
    return {
        "norms of ones, biases of zeros": {
            "w": drawn(32, 64), "blk.0.attn_norm.weight": np.ones(2048, np.float32),
            "blk.0.attn_q.bias": np.zeros(4096, np.float32), "blk.0.attn_k.bias": np.zeros(4096, np.float32),
            "blk.0.attn_q_norm.weight": np.ones((16, 128), np.float32),
            "blk.0.ffn_up_exps.bias": np.zeros((8, 512), np.float32), "v": drawn(32, 64),
        },
        "dead rows": {"token_embd.weight": unused, "blk.0.ffn_up.weight": pruned, "blk.0.ffn_gate.weight": padded},
        "tied embeddings": {"token_embd.weight": unused, "output.weight": unused},
        "one row": {"rope_freqs.weight": np.ones(4096, np.float32), "ssm_d": np.ones((512, 1), np.float32)},
    }  # fmt: skip


@pytest.mark.parametrize("case", healthy())
def test_zeros_of_healthy_files(case: str, tmp_path: Path) -> None:
    assert zeros(model(tmp_path / "m.gguf", healthy()[case])) == []


@pytest.mark.parametrize(("kinds", "n"), [("unused at the end", 0), ("unused", 0), ("ordinary", 1)])
def test_rows_of_the_vocabulary(kinds: str, n: int, tmp_path: Path) -> None:
    """A padded vocabulary has rows of zeros; a hundred ordinary tokens without a row are no padding."""
    rows, types = drawn(1024, 64), [1] * 1024
    span = slice(800, 1024) if kinds == "unused at the end" else slice(300, 400)
    rows[span] = 0
    if kinds != "ordinary":
        types[span] = [5] * len(types[span])
    result = model(tmp_path / "m.gguf", {"token_embd.weight": rows, "output.weight": rows}, types)
    assert len(zeros(result)) == 2 * n


def test_a_quantized_vocabulary_that_was_padded(llama: Llama, tmp_path: Path) -> None:
    rows = drawn(1024, 256)
    rows[900:] = 0
    tensors = {
        "token_embd.weight": (llama.quantize(8, rows), "Q8_0"),
        "output.weight": (llama.quantize(14, rows), "Q6_K"),
    }
    assert zeros(run(write_model(tmp_path / "m.gguf", tensors), readers=False)) == []


def test_an_importance_matrix_may_hold_columns_of_zeros(tmp_path: Path) -> None:
    sums = np.zeros((1, 4096), np.float32)
    path = write_model(tmp_path / "m.gguf", {"w.in_sum2": (sums, "F32")}, {"general.type": "imatrix"})
    assert zeros(run(path, readers=False)) == []


def test_a_verification_names_what_nothing_can_be_verified_with(tmp_path: Path) -> None:
    with open_model(Q4_0) as fixture:
        tensor = fixture.tensors["blk.2.attn_q.weight"]
    report = bytes_rung(patched(Q4_0, tmp_path / "m.gguf", tensor.offset, bytes(tensor.nbytes)))
    assert (report.exit_code, report.culprits) == (5, {"file": 1})
    (left,) = report.rungs[0].unverified
    assert (left.name, left.culprit) == ("blk.2.attn_q.weight", "file")
    assert left.why.startswith(f"a run of {tensor.nbytes:,} zero bytes: all of 'blk.2.attn_q.weight'")


def test_activations_of_zero_are_the_files_where_it_holds_zeros(tmp_path: Path) -> None:
    with open_model(Q4_0) as fixture:
        norm = fixture.tensors["blk.1.ffn_norm.weight"]
    path = patched(Q4_0, tmp_path / "m.gguf", norm.offset, bytes(norm.nbytes))
    options = Options(probes="brief", progress=False, threads=2, tensor=r"blk\.1\.ffn_gate")
    (layers,) = verify(path, host=CpuHost(1), rungs=["layers"], options=options).rungs
    (left,) = layers.unverified
    why = f"its activations are all zero: 'blk.1.ffn_norm.weight' is zero from byte {norm.offset} on"
    assert (left.name, left.why, left.culprit) == ("blk.1.ffn_gate.weight", why, "file")


def test_an_adapter_that_was_not_trained(tmp_path: Path) -> None:
    """Its second matrices begin as zeros."""
    name = "blk.0.attn_q.weight.lora"
    pair = {f"{name}_a": (drawn(8, 256), "F32"), f"{name}_b": (np.zeros((256, 8), np.float32), "F32")}
    path = write_model(tmp_path / "m.gguf", pair, {"general.type": "adapter"})
    assert zeros(run(path, readers=False)) == []


def repeated(result: Audit) -> list[Finding]:
    return [f for f in result.findings if f.id == rule("repeated-bytes")]


@pytest.mark.parametrize("pattern", [b"A", b"\xef\xbe\xad\xde", b"<html>404 Not Found</html>\n", bytes(range(64))])
@pytest.mark.parametrize("nbytes", [PAGE, 1 << 18])
def test_bytes_that_repeat(pattern: bytes, nbytes: int, tmp_path: Path) -> None:
    start = Q4_0.stat().st_size // 2
    fill = (pattern * (nbytes // len(pattern) + 1))[:nbytes]
    found = repeated(run(patched(Q4_0, tmp_path / "m.gguf", start, fill), readers=False))
    assert {f.severity for f in found} == {"warning"}
    assert start - 1 <= found[0].start <= start  # a byte before may fit by chance
    assert found[0].owner == "blk.1.ffn_down.weight"
    assert fill[:16].hex() in found[0].found


def test_bytes_that_repeat_after_more_are_not_found(tmp_path: Path) -> None:
    fill = np.random.default_rng(5).integers(1, 200, 65, np.uint8).tobytes() * 100
    start = Q4_0.stat().st_size // 2
    assert repeated(run(patched(Q4_0, tmp_path / "m.gguf", start, fill), readers=False)) == []


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0"])
def test_rows_of_equal_blocks_are_padding(kind: str, llama: Llama, tmp_path: Path) -> None:
    """llama.cpp's quantizer makes blocks of zeros that hold no zero bytes."""
    number = {"Q4_0": 2, "Q5_0": 6}[kind]
    weights = drawn(1024, 1024)
    weights[40:48] = 0  # neurons that never fire
    weights[1000:] = 0  # a size that was rounded up
    path = write_model(tmp_path / "m.gguf", {"a.weight": (llama.quantize(number, weights), kind)})
    assert repeated(run(path, readers=False)) == []
    weights[500:600] = 0
    path = write_model(tmp_path / "n.gguf", {"a.weight": (llama.quantize(number, weights), kind)})
    assert len(repeated(run(path, readers=False))) == 1
