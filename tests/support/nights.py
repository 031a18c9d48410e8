"""Nights and a run's report that were never measured, for the tests of reports. The same call makes the same."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.report import schema as run_schema
from gguf_verify.report.writer import Kind
from gguf_verify.results.diagnoses import LocatedDiagnosis
from gguf_verify.results.failures import Failure
from gguf_verify.results.margins import Side
from gguf_verify.results.products import OutputMap, TensorBlocks, TensorBytes, TokenRecord
from gguf_verify.results.report import Report
from gguf_verify.rungs.judging import KERNEL
from gguf_verify_nightly.compare import Change, Comparison, Drift, Slower
from gguf_verify_nightly.records import Cell, Key, Measure, Night, Outcome
from gguf_verify_nightly.report import schema as night_schema
from gguf_verify_nightly.significance import TimeChange
from gguf_verify_nightly.summary import NightReport
from tests.support import records
from tests.support.shown import json_of

SCRIPT = "<script>alert(1)</script>"
#: Names that a file may hold: markup, quotes, marks that turn the text around, what XML cannot hold, and a long one.
HOSTILE = (
    SCRIPT, "\"'><img src=x onerror=alert(1)>", "abc\u202eweight\u2066", "nul\x00esc\x1b[31m\ufffe\udc80", "n" * 10_000,
    "| pipe | `code` [link](https://example.invalid) @someone #1 **bold**", "{{ 7*7 }}{% raw %}",
    "]]>&amp;<!--", "=cmd",
)  # fmt: skip
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def gemm_names(n: int) -> list[str]:
    return [f"blk.{i // len(MATRICES)}.{MATRICES[i % len(MATRICES)]}.weight" for i in range(n)]


def run_report(names: list[str] | None = None, wrong: str | None = None, kind: str = "Q4_0") -> dict[str, Any]:
    """`run_result` as JSON."""
    made: dict[str, Any] = json_of(Kind.RUN, run_result(names, wrong, kind))
    return made


def run_result(names: list[str] | None = None, wrong: str | None = None, kind: str = "Q4_0") -> Report:
    """A run over these tensors; the kernel is wrong in one of them, if it is among them."""
    drawn = random.Random(1)
    names = names or gemm_names(21)
    block = bytes((37 * i + 12) % 120 for i in range(FORMATS[kind].block_bytes))
    rungs = [records.rung(name) for name in ("bytes", "blocks", "layers", "tokens")]
    size = FORMATS[kind].block_bytes
    for i, name in enumerate(names):
        bad = int(name == wrong)
        rungs[0].details.append(TensorBytes(name, kind, 2048, 2048 * size, 4096 + i * 2048 * size, 0))
        rungs[1].details.append(TensorBlocks(name, kind, 2048, bad))
        u = 57.0 if bad else drawn.uniform(0.004, 0.09)
        llama, gap = drawn.uniform(0.02, 0.1), drawn.uniform(1e-5, 4e-4)
        rungs[2].details.append(records.gemm(name, u, bad, node=f"node-{i}", type=kind, llama=llama, gap_nmse=gap))
        if bad:
            what = f"kernel: {name} row 17 block 3 token 0: the output is outside the bound"
            failure = Failure(what, name, 17, 3, 0, 4150, block.hex(), -0.0018, -0.0077, 7.9e-7, 57.0)
            rungs[1].fail(failure)
            rungs[2].fail(failure)
            rungs[2].diagnosis = LocatedDiagnosis(
                tensor=name, where=name, who="kernel", row=17, token=0, block=3, verdict="unknown", wrong=12,
                outputs=3072, lines=("unknown: no fault of the catalogue explains the outputs",),
            )  # fmt: skip
            rungs[2].heat_map = OutputMap(
                tensor=name, where=name, who="kernel", m=12, n=256, tokens_per_cell=1, rows_per_cell=8,
                utilisation=[[57.0 if j == 2 else 0.01 for j in range(32)] for _ in range(12)],
                wrong=[[int(j == 2) for j in range(32)] for _ in range(12)],
            )  # fmt: skip
    for i, text in enumerate(["Once", " upon", "\n", SCRIPT, " a", " time"]):
        own = 99 if i == 4 and wrong is not None else 13 + i
        rungs[3].details.append(TokenRecord(position=i, text=text, llama=13 + i, shared=13 + i, own=own, exact=13 + i))
    for rung in rungs:
        rung.checked = {"tensors": len(names), "blocks": 2048 * len(names), "outputs": 9, "tokens": 6}
        rung.seconds = 1.5
        rung.stages = {"compile": 0.5, "upload": 0.01, "launch": 0.25, "judging": 0.1} if rung is not rungs[0] else {}
    rungs[2].measure(KERNEL, 57.0 if wrong in names else 0.09, 1.0, f"{names[0]} row 1 token 0")
    rungs[2].measure(Side("llama.cpp", False), 0.1, 2.0, f"{names[0]} row 3 token 1")
    rungs[2].figures = {"gap to llama.cpp, worst NMSE": 4e-4, "GEMMs by q8_1_dp4a": len(names)}
    rungs[3].notes = ["a tie, margin 0.055"]
    command = "verify_model.py tiny-Q4_0.gguf --host cpu"
    return Report(environment=records.environment(kind, len(names)), rungs=rungs, command=command, seconds=6.0)


def explained(wrong: str) -> Report:
    """A run with a wrong tensor whose cause is known; its failures have activations, and there are twenty of them."""
    made = run_result(wrong=wrong)
    layers = made.rungs[2]
    layers.diagnosis = msgspec.structs.replace(
        layers.diagnosis, verdict="known fault",
        lines=("the offset of the codes is applied twice (explains 100 % of the error). Fix: subtract it once",
               "12 of 3,072 outputs are wrong: rows 16 to 23"),
    )  # fmt: skip
    met = bytes(range(36)).hex()
    for rung in made.rungs:
        rung.failures = [
            msgspec.structs.replace(f, activation_type="Q8_1", activation_hex=met) for f in rung.failures * 10
        ]
        rung.n_failures *= 10
    return made


def keys() -> list[Key]:
    return [
        Key("tiny-F16.gguf", kind, kernel, "cpu", "story", variant)
        for variant in ("installed", "0.3.35") for kind in ("Q4_0", "Q5_1", "Q4_K", "Q6_K")
        for kernel in ("q8_1", "f32", "q8_1_mma")
    ]  # fmt: skip


def cell(key: Key, n: int, outcome: Outcome = Outcome.VERIFIED, gemms: int = 21, words: str = "") -> Cell:
    drawn = random.Random(f"{key!r}{n}")
    names, bad = gemm_names(gemms), outcome is Outcome.MISMATCH
    used = {name: drawn.uniform(0.004, 0.09) for name in names}
    if bad:
        used[names[8]] = 57.0
    told = outcome in (Outcome.VERIFIED, Outcome.MISMATCH)
    return Cell(
        key, outcome, words, {Outcome.VERIFIED: 0, Outcome.MISMATCH: 1}.get(outcome), drawn.gauss(20, 1),
        {rung: drawn.gauss(5, 0.2) for rung in ("bytes", "blocks", "layers", "tokens")} if told else {},
        {"llama-cpp-python": "0.3.36" if key.variant == "installed" else key.variant, "gguf-verify": "0.1.0"},
        "cpu: a CPU",
        (Measure("layers", "kernel", max(used.values()), 2.0, f"{names[8]} row 17 token 0", True),
         Measure("layers", "llama.cpp as q8_0_cpu", 0.1, 5.0, f"{names[0]} row 3 token 1", False)) if told else (),
        {"layers: gap to llama.cpp, worst NMSE": 4e-4}, used if told else {},
        run_result(names, names[8]) if bad else None,
    )  # fmt: skip


@cache
def history(nights: int = 20, gemms: int = 21) -> list[Night]:
    """Quiet nights, then one in which a kernel is wrong, llama.cpp crashed, and a cell was not run."""
    planned = tuple(keys())
    out = []
    for n in range(1, nights + 1):
        cells = {key: cell(key, n, gemms=gemms) for key in planned}
        if n == nights:
            cells[planned[2]] = cell(planned[2], n, Outcome.MISMATCH, gemms, "layers: blk.1.attn_k.weight row 17")
            cells[planned[7]] = cell(
                planned[7], n, Outcome.CRASHED, gemms, "llama.cpp died of SIGSEGV while it evaluated"
            )
            del cells[planned[-1]]
        day = f"2026-10-{n:02}"
        out.append(Night(n, f"{day}T01:30:00+00:00", f"{day}T02:00:00+00:00", "nightly.toml", planned, cells,
                         {"CPU": "a CPU", "cores": "2", "memory": "8 GiB"}, "0.1.0 (1dc5011)"))  # fmt: skip
    return out


def changes() -> Comparison:
    """What changed in the last night of `history`."""
    planned, ok = keys(), Outcome.VERIFIED
    return Comparison(
        19, 20,
        new_failures=(
            Change(planned[2], ok, Outcome.MISMATCH, "verified, now mismatch"),
            Change(planned[7], ok, Outcome.CRASHED, "verified, now crashed"),
        ),
        fixed=(Change(planned[4], Outcome.TIMED_OUT, ok, "timed out, now verified"),),
        vanished=(Change(planned[-1], ok, None, "verified, now not run"),),
        drift=(Drift(planned[0], "layers", "kernel", 0.02, 0.08, 0.02, 0.02, 18),),
        slower=(Slower(planned[1], TimeChange(31.0, 20.0, 9.0, 5.0, 18)),),
    )  # fmt: skip


def report(nights: int = 20, gemms: int = 21, compared: bool = True) -> NightReport:
    """The last night of `history`, compared with the one before."""
    return NightReport(tuple(history(nights, gemms)), changes() if compared else None)


@cache
def validator(name: str) -> Draft202012Validator:
    """Of the JSON schema "run" or "nightly"."""
    schema = json.loads({"run": run_schema.PATH, "nightly": night_schema.PATH}[name].read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
