"""Kernels of others that multiply nothing: dequantizers, quantizers of activations, repackings; right ones, and ones
with a fault that their rung must find."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify import kernel
from gguf_verify.checks import ALONE, CHECKED
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.by_name import open_kernel
from gguf_verify.kernels.tasks import Repacker
from gguf_verify.report.writer import Kind
from gguf_verify.results.calls import Call
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.registry import RUNGS, asked_rungs, rungs_for
from gguf_verify.rungs.run import Run
from gguf_verify.rungs.tasks import packing
from gguf_verify.rungs.tasks.codes import Codes
from gguf_verify.support.errors import UsageError
from gguf_verify.verification import verify
from tests.support import foreign_tasks
from tests.support.foreign_runs import Q4_0
from tests.support.processes import children
from tests.support.shown import json_of, text_of, written
from tests.support.tools import ROOT, flat

TASKS = ROOT / "tests" / "support" / "foreign_tasks.py"
RUNG = {"dequantize": "values", "quantize": "codes", "repack": "packing"}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with open_model(Q4_0) as opened:
        yield opened


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    """In place of the activations of the model's graph, which takes llama.cpp, others."""

    def graph(rung: Codes, matrices: list[Tensor]) -> Iterator[None]:
        yield
        x = np.random.default_rng(4).standard_normal((40, 256), np.float32)
        rung.activations(Call(kind="tensor", m=len(x), k=256), model.tensors["blk.0.attn_k.weight"], x)

    monkeypatch.setattr(Codes, "graph", graph)


def climbed(model: Model, function: Any, **options: Any) -> RungResult:
    """The result of the function's own rung, on one matrix and few probes."""
    brief: dict[str, Any] = {"probes": "brief", "prompt": "The", "tensor": "blk.0.attn_k", "progress": False}
    with open_kernel(function, CpuHost(1), 1, 20.0) as candidate:
        run = Run(model, candidate, Options(**brief | options))
        try:
            return RUNGS[RUNG[candidate.computes]].climb(run)
        finally:
            run.close()


# -- dequantizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["floats", "rounded", "brain", "in_halves", "eight_rows"])
def test_right_dequantizer(model: Model, name: str) -> None:
    result = climbed(model, getattr(foreign_tasks, name))
    assert (result.verdict, result.failures) == ("passed", [])
    assert result.checked["values"] == 128 * 256
    assert {"every scale", "any bits", "the model's"} <= set(result.envelopes[0].values)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nibbles_in_turn", "right values in another order: the value of place 16 lies at place 1"),
        ("truncated", "is not the expected one"),
        ("without_tail", "of 1 rows and K = 32 [(]blocks of the model's[)]: row 0 block 0: value 0 is not"),
        ("one_code_off", "row 0 block 7: value 31 is not the expected one"),
        ("in_place", "the kernel modified its weights: 1 byte, the first at 0"),
        ("flushes", "is not the expected one"),
        ("in_halves_unsaid", 'They are what arithmetic = "float16_offset_mul_add" gives'),
        ("far_from_halves", "is outside the bound"),
        ("doubles", r"the kernel returned float64\[128, 256\], expected float32\[128, 256\]"),
    ],
)
def test_wrong_dequantizer(model: Model, name: str, words: str) -> None:
    result = climbed(model, getattr(foreign_tasks, name))
    assert result.verdict == "failed"
    assert re.search(words, result.failures[0].what), result.failures[0].what


def test_where_a_wrong_value_is(model: Model) -> None:
    """A failure names tensor, row, block, byte offset, bytes, numbers and the call."""
    (failure, *_) = climbed(model, foreign_tasks.one_code_off).failures
    tensor = model.tensors["blk.0.attn_k.weight"]
    assert (failure.tensor, failure.row, failure.block, failure.block_type) == (tensor.name, 0, 7, "Q4_0")
    assert failure.byte_offset == tensor.block_offset(0, 7)
    assert failure.block_hex == tensor.blocks(0, 1)[0, 7].tobytes().hex()
    assert failure.got != failure.expected
    assert failure.call is not None
    again = climbed(model, foreign_tasks.one_code_off, only_call=failure.call.id)
    assert [f.what for f in again.failures] == [failure.what]
    assert climbed(model, foreign_tasks.floats, only_call=failure.call.id).verdict == "passed"


# -- quantizers --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("name", ["codes", "codes_of_halves", "sums_in_order", "fast"])
def test_right_quantizer(model: Model, name: str) -> None:
    result = climbed(model, getattr(foreign_tasks, name))
    assert (result.verdict, result.failures) == ("passed", [])
    assert result.checked["blocks"] > 0
    if name == "sums_in_order":
        assert result.figures["sums of another order"] > 0
    if name == "fast":
        assert 0 < result.figures["codes off by one step"] < result.figures["ambiguous codes"]


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("order_said", "s is .*, expected "),
        ("to_even", "rounding boundary: ties are rounded in another way"),
        ("sums_off", "s is .*, expected "),
        ("fast_unsaid", "the division is approximate"),
        ("too_fast", "code [0-9]+ of x = .* is .*, expected "),
        ("last_token_missing", "code 31 of x = "),
    ],
)
def test_wrong_quantizer(model: Model, name: str, words: str) -> None:
    result = climbed(model, getattr(foreign_tasks, name))
    assert result.verdict == "failed"
    assert any(re.search(words, failure.what) for failure in result.failures), result.failures[0].what


@pytest.mark.usefixtures("drawn")
def test_another_encoding_is_named(model: Model) -> None:
    as_mmq = kernel(computes="quantize", activations="mmq_ds4")(lambda x, s: foreign_tasks.codes(x, s))
    result = climbed(model, as_mmq)
    assert result.verdict == "failed"
    assert 'It gives the bytes of activations = "q8_1"' in " ".join(f.what for f in result.failures)


def test_activations_of_the_graph(model: Model) -> None:
    result = climbed(model, foreign_tasks.codes, tensor=r"blk.0.(attn_k|ffn_down)", prompt="The quick brown fox")
    assert result.verdict == "passed"
    assert result.checked["blocks"] % (256 // 32 + 768 // 32) == 0  # tokens of both widths


# -- repackings --------------------------------------------------------------------------------------------------------


def test_right_packing(model: Model) -> None:
    result = climbed(model, foreign_tasks.packs)
    assert (result.verdict, result.failures) == ("passed", [])
    assert result.checked["blocks"] == 128 * 8
    larger = climbed(model, foreign_tasks.padded)
    assert larger.verdict == "passed"
    assert any("packed Q4_0 is larger than the file's rows" in note for note in larger.notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loses", "byte 17 of the block comes back as 0x[0-7]., it was 0x[89a-f]."),
        ("loses_alone", "1 of 147,456 bits of the rows are nowhere in what it packs, the first bit 7 of byte 17"),
        ("cheats", "unpack raised KeyError"),
    ],
)
def test_wrong_packing(model: Model, name: str, words: str) -> None:
    result = climbed(model, getattr(foreign_tasks, name))
    assert result.verdict == "failed"
    assert re.search(words, result.failures[0].what), result.failures[0].what


def test_packing_without_unpack(model: Model) -> None:
    """Bits that only move are taken apart by inference; anything else is not verified, and a line says what to give."""
    moved = climbed(model, foreign_tasks.packs_alone)
    assert moved.verdict == "passed"
    assert any("it declares no unpack" in note for note in moved.notes)
    other = climbed(model, foreign_tasks.widens)
    assert (other.verdict, other.n_failures) == ("unverified", 0)
    assert "give an unpack" in other.unverified[0].why


#: It packs nothing: the rows are record locks that its process holds on this file, and that `unpack` finds there.
LOCKS = """
import fcntl, os, struct
import numpy as np
from gguf_verify import kernel

SET, GET, READ, WRITE = 37, 36, 0, 1  # F_OFD_SETLK, F_OFD_GETLK, F_RDLCK, F_WRLCK
FILE = os.open(__file__, os.O_RDONLY)

def lock(do, kind, start, size):
    return struct.unpack("hhqqi4x", fcntl.fcntl(FILE, do, struct.pack("hhqqi4x", kind, 0, start, size, 0)))

def unpack(packed, shape):
    found = [lock(GET, WRITE, i << 50, 1 << 50) for i in range(shape.n * shape.k // 32 * 18 // 6)]
    raw = b"".join((size - 1 if kind == READ else 0).to_bytes(6, "little") for kind, _, _, size, _ in found)
    return np.frombuffer(raw, np.uint8).reshape(shape.n, -1)

@kernel(computes="repack", formats=["Q4_0"], unpack=unpack)
def pack(rows, format):
    raw = rows.tobytes()
    for i in range(len(raw) // 6):
        lock(SET, READ, i << 50, int.from_bytes(raw[6 * i : 6 * i + 6], "little") + 1)
    return np.zeros(1, np.uint8)
"""


def test_what_the_process_that_packs_holds_is_gone(model: Model, tmp_path: Path) -> None:
    (tmp_path / "locks.py").write_text(LOCKS)
    result = climbed(model, f"{tmp_path}/locks.py:pack", only_call=Call(kind="tensor", n=128, k=256).id)
    assert result.verdict == "failed"
    assert "of 1,024 blocks are not those that were packed" in result.failures[0].what


def test_batches_do_not_change_the_result(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many matrices are packed before they are taken apart."""
    for function, verdict in ((foreign_tasks.packs, "passed"), (foreign_tasks.loses, "failed")):
        results = []
        for most in (1 << 28, 1 << 12):
            monkeypatch.setattr(packing, "MOST_HELD", most)
            results.append(climbed(model, function, tensor="blk.0.attn_[kv]"))
        assert results[0].verdict == results[1].verdict == verdict
        one, several = ((r.checked["blocks"], r.details, r.figures) for r in results)
        assert one == several
        assert len(results[0].details) == 2


def test_what_a_matrix_before_was_packed_into_is_not_its_own(model: Model) -> None:
    """Blocks that an earlier matrix had are packed as their numbers alone, and unpack remembers them."""
    result = climbed(model, foreign_tasks.numbers_known_blocks, tensor="blk.0.attn")
    assert result.verdict == "failed"
    assert "IndexError" in result.failures[0].what


#: Its lines are executed in one process each.
SWAPS = """
from gguf_verify import kernel

def unpack(packed, shape):
    other = packed[::-1]
    return other.copy()

@kernel(computes="repack", formats=["Q4_0"], unpack=unpack)
def pack(weights, shape):
    rows = weights[::-1]
    return rows.copy()
"""


def test_the_code_of_both_processes_is_observed(tmp_path: Path) -> None:
    """Each tells what it executed before it ends."""
    (tmp_path / "swaps.py").write_text(SWAPS)
    rows = np.random.default_rng(5).integers(0, 256, (9, 36), np.uint8)
    with open_kernel(f"{tmp_path}/swaps.py:pack", CpuHost(1)) as task:
        assert isinstance(task, Repacker)
        assert np.array_equal(task.unpack(FORMATS["Q4_0"], task.pack(FORMATS["Q4_0"], rows), 9, 64), rows)
        task.forget()
        found = task.executed()
    assert found is not None
    lines = found.files["swaps.py"].lines
    inside = [n for n, line in enumerate(SWAPS.splitlines(), 1) if line.startswith("    ")]
    assert {n: lines.get(n) for n in inside} == dict.fromkeys(inside, True)


@pytest.mark.parametrize("code", ["python", "cuda"])
def test_pack_and_unpack_never_run_at_once(tmp_path: Path, code: str) -> None:
    """Whatever a process could hold for the other one: each starts when the other has ended, under schedules too."""
    rows = np.random.default_rng(5).integers(0, 256, (9, 36), np.uint8)
    others = set(children(os.getpid()))
    with open_kernel(str(packing_in_cuda(tmp_path)) if code == "cuda" else foreign_tasks.packs, CpuHost(1)) as task:
        assert isinstance(task, Repacker)
        processes = [set(children(os.getpid())) - others]
        schedules = [None, Schedule("descending")] if code == "cuda" else [None]
        for of_pack, of_unpack in [*product(schedules, schedules), (None, None)]:
            packs, unpacks = (task if of is None else task.under(of) for of in (of_pack, of_unpack))
            assert isinstance(packs, Repacker)
            assert isinstance(unpacks, Repacker)
            packed = packs.pack(FORMATS["Q4_0"], rows)
            processes.append(set(children(os.getpid())) - others)
            assert np.array_equal(unpacks.unpack(FORMATS["Q4_0"], packed, 9, 64), rows)
            processes.append(set(children(os.getpid())) - others)
    assert [len(those) for those in processes] == [1] * len(processes)
    assert len(set.union(*processes)) == len(processes) - 1, "the first call is in the process that was there"


# -- whole runs --------------------------------------------------------------------------------------------------------


def test_whole_run() -> None:
    """The default rungs are those of what the kernel computes, and every report has them."""
    options = Options(probes="brief", tensor="blk.0.attn_k", progress=False)
    report = verify(Q4_0, f"{TASKS}:nibbles_in_turn", CpuHost(1), options=options)
    assert [rung.name for rung in report.rungs] == ["bytes", "values"] == list(rungs_for("dequantize"))
    assert (report.exit_code, report.environment.kernel.computes) == (1, "dequantize")
    assert "--rungs values" in report.repeat_of()
    for detail in (0, 2):
        said = flat(text_of(Kind.RUN, report, detail=detail))
        assert "FAILED values: blk.0.attn_k.weight row 0 block 0: value" in said
    assert json_of(Kind.RUN, report)["environment"]["kernel"]["computes"] == "dequantize"
    assert "nibbles_in_turn" in str(written("--html", Kind.RUN, report))
    assert "values" in report._repr_html_()


def test_a_rung_that_is_not_for_it() -> None:
    options = Options(probes="brief", progress=False)
    with pytest.raises(UsageError, match=r"^the layers rung is not for a kernel that computes 'dequantize': its rung"):
        verify(Q4_0, f"{TASKS}:floats", CpuHost(1), ["layers"], options)
    with pytest.raises(UsageError, match=r"^the values rung is not for a kernel that computes 'gemm'"):
        asked_rungs(["values"], "gemm")
    assert rungs_for() == ("bytes", "blocks", "layers", "tokens")


@pytest.mark.parametrize("said", ["attention", "rope", "softmax", "kv-cache"])
def test_what_is_out_of_scope(said: str) -> None:
    """One line says what is in scope, and where that stands."""
    with pytest.raises(UsageError) as raised:
        kernel(computes=said, formats=["Q4_0"])
    line = str(raised.value)
    assert "\n" not in line
    assert f"computes '{said}' is out of scope" in line
    assert all(word in line for word in ("gemm", "experts", "dequantize", "quantize", "repack", "kernels-of-your-own"))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"computes": "dequantize", "formats": ["Q4_0"], "arithmetic": "float16_mad"}, "arithmetic 'float16_mad'"),
        ({"computes": "dequantize", "formats": ["Q4_1"], "arithmetic": "float16_offset_fma"}, "Q4_1 has none"),
        ({"computes": "dequantize", "formats": ["Q4_0"], "semantics": "q8_1"}, "cannot declare semantics"),
        ({"computes": "dequantize", "formats": ["Q4_0"], "arithmetic": {"Q8_0": "once"}}, "not among its formats"),
        ({"computes": "dequantize"}, "it declares no formats"),
        ({"computes": "quantize", "activations": "q8_2"}, "did you mean 'q8_1'"),
        ({"computes": "quantize", "activations": "q8_1", "takes": "int8"}, "takes 'int8' is not one of"),
        ({"computes": "quantize", "activations": "q8_1", "fast_math": "yes"}, "fast_math must be true or false"),
        ({"computes": "repack", "formats": ["Q4_0"], "output": "float16"}, "cannot declare output"),
    ],
)
def test_declarations_that_are_refused(declared: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        kernel(**declared)


# -- in CUDA C++ -------------------------------------------------------------------------------------------------------

DEQUANTIZE = """
computes = "dequantize"
formats = ["Q4_0"]
symbol = "dequantize"
parameters = ["weights", "output", "int64 N * K"]
block = 128
grid = "ceil(N * K, 128)"
"""
QUANTIZE = """
computes = "quantize"
activations = "q8_0_cpu"
symbol = "quantize"
parameters = ["activations", "output", "int32 K"]
block = 32
grid = ["K / 32", "M"]
"""
PACK = """
computes = "repack"
formats = ["Q4_0"]
symbol = "pack"
packed = "N * K / 32 * 18"
parameters = ["weights", "output", "int32 N * K / 32"]
block = 64
grid = "ceil(N * K / 32, 64)"
unpack = { symbol = "unpack", parameters = ["weights", "output", "int32 N * K / 32"], block = 64, grid = "ceil(N * K / 32, 64)" }
"""  # noqa: E501


QUANTIZE_Q8_1 = """
computes = "quantize"
activations = "q8_1"
symbol = "quantize_to_q8_1"
parameters = ["activations", "output"]
block = 32
grid = "M * K / 32"
"""


@pytest.mark.parametrize("declared", [DEQUANTIZE, QUANTIZE_Q8_1], ids=["dequantize", "quantize"])
@pytest.mark.parametrize("wrong", [False, True])
def test_indices_past_2_31(model: Model, tmp_path: Path, declared: str, wrong: bool) -> None:
    shutil.copy(TASKS.with_suffix(".cu"), tmp_path)
    file = tmp_path / "declared.toml"
    macros = "INDEX_IN_AN_INT = 1" if wrong else ""
    file.write_text(f'code = "foreign_tasks.cu"\n{declared}\nmacros = {{ {macros} }}\n')
    result = climbed(model, str(file), probes="full", only_call="index")
    if wrong:
        (failure,) = result.failures
        assert re.search(r"thread block .*an index or a count overflows 32 bits: right at", failure.what)
    else:
        assert (result.verdict, result.failures) == ("passed", [])
        assert result.checked[ALONE] == 2, "the small call, and thread blocks of the large one"


def test_signed_numbers_wrap_as_on_a_card(model: Model, tmp_path: Path) -> None:
    """Else a C++ compiler might compute an index that overflows in 64 bits, and hide it."""
    shutil.copy(TASKS.with_suffix(".cu"), tmp_path)
    file = tmp_path / "declared.toml"
    file.write_text(f'code = "foreign_tasks.cu"\n{DEQUANTIZE}\nmacros = {{ SIGNED_NUMBERS_WRAP = 1 }}\n')
    result = climbed(model, str(file), probes="full", only_call="index")
    assert (result.verdict, result.failures) == ("passed", [])


def test_a_parameter_that_is_too_small_is_no_failure(model: Model, tmp_path: Path) -> None:
    """Its kernel cannot be called with more, and no domain can say so."""
    source = TASKS.with_suffix(".cu").read_text()
    assert "long long values" in source
    (tmp_path / "foreign_tasks.cu").write_text(source.replace("long long values", "unsigned values"))
    file = tmp_path / "declared.toml"
    file.write_text(f'code = "foreign_tasks.cu"\n{DEQUANTIZE.replace("int64", "uint32")}\n')
    result = climbed(model, str(file), probes="full", only_call="index")
    assert (result.verdict, result.failures) == ("passed", [])
    assert result.checked[ALONE] == 1, "the small call"


@pytest.mark.usefixtures("drawn")
def test_indices_that_are_not_tried_are_named(model: Model) -> None:
    for function in (foreign_tasks.floats, foreign_tasks.codes):
        result = climbed(model, function)
        assert ("indices of 2^31 and more", "--effort quick") in result.envelopes[0].not_covered
        assert "indices" in {skipped.check for skipped in result.skipped}


def packing_in_cuda(folder: Path) -> Path:
    """The declaration of one."""
    shutil.copy(TASKS.with_suffix(".cu"), folder)
    file = folder / "declared.toml"
    file.write_text(f'code = "foreign_tasks.cu"\n{PACK}')
    return file


@pytest.mark.parametrize(
    ("declared", "macro", "words"),
    [
        (DEQUANTIZE, "", ""),
        (DEQUANTIZE, "WITHOUT_BOUND", "wrote outside its output: 0 bytes before, 384 after"),
        (QUANTIZE, "", ""),
        (QUANTIZE, "TINY_BLOCKS_SPOIL_OTHERS", "every size: .*code [0-9]+ of x = "),
        (QUANTIZE, "INFINITIES_SPOIL_OTHERS", "not finite: .*code [0-9]+ of x = "),
        (
            QUANTIZE,
            "WITHOUT_BARRIER",
            "race|code [0-9]+ of x = |does not always write its outputs|does not write all outputs",
        ),
        (PACK, "", ""),
    ],
)
def test_in_cuda(model: Model, tmp_path: Path, declared: str, macro: str, words: str) -> None:
    shutil.copy(TASKS.with_suffix(".cu"), tmp_path)
    file = tmp_path / "declared.toml"
    file.write_text(f'code = "foreign_tasks.cu"\n{declared}\nmacros = {{ {f"{macro} = 1" if macro else ""} }}\n')
    result = climbed(model, str(file))
    if not words:
        assert (result.verdict, result.failures) == ("passed", [])
        assert result.checked[CHECKED] > 0
        # 127 / max|x| overflows, and a GPU converts what results otherwise than this processor
        omitted = [why for what, why in result.envelopes[0].not_covered if what.startswith("blocks with codes that no")]
        assert len(omitted) == (declared == QUANTIZE)
        assert all("converts a float to an integer type that cannot hold it" in why for why in omitted)
    else:
        assert result.verdict == "failed"
        assert any(re.search(words, f.what) for f in result.failures), [f.what for f in result.failures]
