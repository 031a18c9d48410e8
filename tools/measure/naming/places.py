"""Localisation: whether a report gives the tensor, row and block of a fault in a single block of weights.

The rungs `blocks` and `layers` run unchanged, on a kernel that gets one altered block (or whose outputs are altered as
if it did). llama.cpp's graph is captured once for each model and played back.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Kernel
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ELEMENT_KERNELS, ShippedKernel
from gguf_verify.llama.evaluations import Evaluation
from gguf_verify.llama.gemms import Gemm
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs import explain
from gguf_verify.rungs.layers.call import ACTIVATIONS
from gguf_verify.rungs.registry import RUNGS
from gguf_verify.rungs.run import Run
from gguf_verify.support import scratch

from ..inputs import WEIGHTS, Bytes, Floats, can_write, decoded, model_in, rows_of, text, write_tensors
from ..markdown import percent
from ..one_block import OneBlock, Plan, flipped, low_bits
from ..workers import workers

#: The rungs that are run.
_TRIED = ("blocks", "layers")
#: Trials are cheap on CUT rows of each matrix; one in WHOLE trials is on all rows.
CUT, WHOLE = 48, 16
#: The kernels of most trials; the other shipped kernels share the rest.
_MOST = ("q8_1_dp4a", "q8_1_naive", "f32_naive")
LISTED = 100
#: In one of this number of trials the kernel declares no order, so that its bits are not judged.
UNDECLARED = 7
#: In one of this number of trials the rung also makes a diagnosis, which is recorded.
DIAGNOSED = 16
_SAID = {"right": "named", "unseen": "unseen", "row": "row named alone"}


# -- the model, captured -----------------------------------------------------------------------------------------------


class Recorded:
    """A recorded session with a model in llama.cpp, played back for the rungs: its GEMMs, and the evaluation at the
    end."""

    def __init__(self, gemms: Sequence[Gemm], done: Evaluation, prompt: list[int]) -> None:
        self.gemms, self.done, self.prompt, self.note = gemms, done, prompt, None
        self.llama = self
        self.wanted = ""

    def capture(self, *_: Any, **__: Any) -> Iterator[Gemm | Evaluation]:
        yield from (g for g in self.gemms if g.tensor == self.wanted)
        yield self.done

    def passes(self) -> Iterator[tuple[list[int], int]]:
        yield self.prompt, 0

    def close(self) -> None:
        pass


class Library:
    """llama.cpp's library with a cache of products of blocks."""

    def __init__(self, llama: Llama) -> None:
        self._llama, self._products = llama, dict[tuple[bytes, bytes], Floats]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)

    def block_products(self, type_id: int, w: Bytes, x: Floats, *more: Any, **keywords: Any) -> Floats:
        key = w.tobytes(), x.tobytes()
        if key not in self._products:
            self._products[key] = self._llama.block_products(type_id, w, x, *more, **keywords)
        return self._products[key]


@dataclasses.dataclass
class RecordedModel:
    """An open model with its recorded graph."""

    model: Model
    session: Recorded
    library: Library

    def run(self, kernel: Kernel, tensor: str, rung: str) -> RungResult:
        """Return the rung's result on one tensor."""
        run = Run(self.model, kernel, Options(tensor=f"^{tensor}$", probes="brief", progress=False, seed=0))
        self.session.wanted = tensor
        run.__dict__.update(session=self.session, library=self.library)
        return RUNGS[rung].climb(run)


@contextmanager
def recorded(path: Path, prompt: str, llama: Llama, seed: int) -> Iterator[tuple[RecordedModel, RecordedModel]]:
    """Provide the model with whole GEMMs, and with CUT rows of each, from a row that the seed chooses."""
    with Llama() as session, scratch.temporary("measure") as folder, open_model(path) as model:
        session.model.open(model, 1)
        session.model.make_context(64)
        tokens = session.model.tokenize(prompt)
        events = list(session.model.capture(tokens, ACTIVATIONS, checksum=True, idle=True))
        gemms = [e for e in events if isinstance(e, Gemm)]
        (done,) = (e for e in events if isinstance(e, Evaluation))
        rng = np.random.default_rng(seed)
        cut, tensors = [], {}
        for gemm in gemms:
            tensor = model.tensors[gemm.tensor]
            if tensor.type.weights is None or not can_write(tensor.type.weights):
                continue
            first = int(rng.integers(max(1, tensor.n_rows - CUT)))
            span = slice(first, first + CUT)
            tensors[gemm.tensor] = tensor.type.weights, rows_of(tensor)[span]
            cut.append(dataclasses.replace(gemm, y=np.ascontiguousarray(gemm.y[:, span]), crc32=None))
        whole = RecordedModel(model, Recorded(gemms, done, tokens), Library(llama))
        if not cut:
            yield whole, whole
            return
        with open_model(write_tensors(folder / "cut.gguf", tensors)) as of_cut:
            yield whole, RecordedModel(of_cut, Recorded(cut, done, tokens), Library(llama))


# -- faults ------------------------------------------------------------------------------------------------------------


def altered(fmt: WeightFormat, block: Bytes, other: Bytes, rng: np.random.Generator) -> dict[str, Bytes]:
    """Return the altered block uint8[bytes] for each kind of fault; `other` is its neighbour."""
    any_bit = int(rng.integers(8 * len(block)))
    made = {
        "one wrong bit": flipped(block, any_bit // 8, 1 << any_bit % 8),
        "the block beside it": other.copy(),
    }
    if not isinstance(fmt, BlockFormat):
        return made
    if bits := low_bits(fmt):
        at = bits[int(rng.integers(len(bits)))]
        made["one code off by one"] = flipped(block, at // 8, 1 << at % 8)
    for field in fmt.fields:
        at, size = fmt.field_offset(field.name), field.nbytes
        if field.name in ("qh", "hmask"):
            bit = int(rng.integers(8 * size))
            made["one wrong high bit"] = flipped(block, at + bit // 8, 1 << bit % 8)
        if field.dtype == "<f2" and field.name in ("d", "m", "dmin"):
            kind = "d" if field.name == "d" else "m"
            made[f"{kind} off by one ulp"] = block.copy()
            made[f"{kind} off by one ulp"][at : at + 2].view(np.uint16)[:] += np.uint16(1)
            made[f"{kind} of the wrong sign"] = flipped(block, at + 1, 0x80)
            made[f"{kind} of the block beside it"] = block.copy()
            made[f"{kind} of the block beside it"][at : at + 2] = other[at : at + 2]
            if kind == "m":
                made["m missing"] = block.copy()
                made["m missing"][at : at + 2] = 0
    return made


def planned(model: Model, tensor_name: str, quantized: bool, rng: np.random.Generator) -> Plan | None:
    """Return a random fault in a random block; None if the block occurs twice or the fault changes no value."""
    tensor = model.tensors[tensor_name]
    fmt = tensor.type.weights
    assert fmt is not None
    size = fmt.unit // fmt.block_size * fmt.block_bytes
    rows = rows_of(tensor)
    if rows.shape[1] % size:
        return None
    row, block = int(rng.integers(len(rows))), int(rng.integers(rows.shape[1] // size))
    blocks = rows.reshape(-1, size)
    number = row * (rows.shape[1] // size) + block
    original, other = blocks[number], blocks[number - 1 if number else 1]
    if (blocks == original).all(axis=1).sum() != 1:
        return None
    made = altered(fmt, original, other, rng)
    sums = quantized and fmt.block_size == 32 and isinstance(fmt, BlockFormat) and (fmt.offset or fmt.has_min)
    kinds = [*made, *(["s missing"] if sums else [])]
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind == "s missing":
        return Plan(kind, tensor_name, row, block, original, original, True)
    new = made[kind]
    with np.errstate(all="ignore"):
        before, after = decoded(fmt, np.stack([original, new]))
    if not np.isfinite(after).all() or np.array_equal(before, after):
        return None
    return Plan(kind, tensor_name, row, block, original, new)


# -- trials ------------------------------------------------------------------------------------------------------------


def judged(result: RungResult, plan: Plan) -> str:
    """Rate a report: "right"; "unseen"; "row" if it gives the tensor and row and reports that no single block is wrong
    (the block's product alone has the right bits, but not its sum with others); or the places that it gives instead."""
    if not result.n_failures:
        return "unseen"
    rows = {(f.tensor, f.row) for f in result.failures}
    blocks = {f.block for f in result.failures if f.block is not None}
    if rows == {(plan.tensor, plan.row)} and blocks == {plan.block}:
        return "right"
    if rows == {(plan.tensor, plan.row)} and not blocks and _alone_right(result):
        return "row"
    return f"rows {sorted(rows, key=str)[:4]}, blocks {sorted(blocks)[:4]}"


def _alone_right(result: RungResult) -> bool:
    placed = [f for f in result.failures if "differ by more than both bounds" not in f.what]
    return bool(placed) and all("no single block is wrong" in f.what for f in placed)


def kernel_for(trial: int, fmt: WeightFormat) -> ShippedKernel:
    """Return a fast shipped kernel for three in four trials, and the others in turn."""
    host = CpuHost(1)
    if not isinstance(fmt, BlockFormat):
        return ShippedKernel(KERNELS["q8_1_naive"], host)
    ladder = [name for name, spec in KERNELS.items() if spec.covers(fmt) and name not in _MOST]
    name = ladder[trial // 4 % len(ladder)] if trial % 4 == 3 else _MOST[trial % 4]
    return ShippedKernel(KERNELS[name], host)


def localised(
    types: Sequence[str], trials: int, seed: int, judge_of: Any = judged, processes: int = 1
) -> dict[str, Any]:
    """Measure this number of faults in matrices of each type, each through both rungs.

    Args:
        judge_of: like `judged`.
    """
    with workers(processes) as over:
        return merged(list(over(partial(of_type, trials=trials, seed=seed, judge_of=judge_of), types)))


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the figures of several types."""
    out: dict[str, Any] = {"trials": sum(p["trials"] for p in parts)}
    for name in ("counts", "unseen, why"):
        total = sum((Counter(p[name]) for p in parts), Counter[str]())
        out[name] = dict(sorted(total.items()))
    out["by"] = {
        what: dict(sorted(sum((Counter(p["by"][what]) for p in parts), Counter[str]()).items()))
        for what in ("type", "kernel", "fault")
    }
    return out | {name: [x for p in parts for x in p[name]] for name in ("missed", "unseen", "diagnosed as")}


def of_type(name: str, trials: int, seed: int, judge_of: Any = judged) -> dict[str, Any]:
    """Return the figures of one type."""
    counts: Counter[str] = Counter()
    by: dict[str, Counter[str]] = {"type": Counter(), "kernel": Counter(), "fault": Counter()}
    misses, unseen, named = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    fmt = WEIGHTS[name]
    rng = np.random.default_rng((seed, fmt.type_id))
    with scratch.temporary("measure") as folder, Llama() as llama:
        path = model_in(fmt, folder)
        with recorded(path, text(seed + fmt.type_id, 4)[:24], llama, seed) as (whole, cut):
            done = 0
            while done < trials:
                kernel = kernel_for(done, fmt)
                slow = isinstance(fmt, BlockFormat) and kernel.name not in _MOST
                on = whole if done % WHOLE == 0 and not slow else cut
                names = [
                    n for n in dict.fromkeys(g.tensor for g in on.session.gemms)
                    if on.model.tensors[n].type.name == name
                ]  # fmt: skip
                tensor = names[int(rng.integers(len(names)))]
                plan = planned(on.model, tensor, kernel.semantics == "q8_1", rng)
                if plan is None:
                    counts["drawn again: the block occurs twice, or the fault changes no value"] += 1
                    continue
                declares, diagnoses = done % UNDECLARED != UNDECLARED - 1, done % DIAGNOSED == 1
                used = ELEMENT_KERNELS[name].name if name in ELEMENT_KERNELS else kernel.name
                place = {
                    "type": name, "kernel": used, "fault": plan.kind, "tensor": tensor, "row": plan.row,
                    "block": plan.block, "declares its order": declares, "trial": done,
                }  # fmt: skip
                done += 1
                for rung in _TRIED:
                    result = _one(on, kernel, plan, rung, declares, diagnoses)
                    said = judge_of(result, plan)
                    counts[f"{rung}: {_SAID.get(said, 'missed')}"] += 1
                    if said == "unseen":
                        unseen.append({**place, "rung": rung, "why": _why(on, kernel, plan, rung, declares)})
                    elif said == "row":
                        unseen.append({**place, "rung": rung, "why": "the block's product alone has the right bits"})
                    elif said != "right":
                        misses.append({**place, "rung": rung, "said": said})
                    if result.diagnosis is not None:
                        ids = [*(f.id for f in result.diagnosis.faults), *result.diagnosis.definitions]
                        counts["diagnosed"] += 1
                        if ids:
                            named.append({**place, "named": ids})
                for what, key in (("type", name), ("kernel", used), ("fault", plan.kind)):
                    by[what][key] += 1
    reasons = Counter(f"{u['rung']}: {u['why']}" for u in unseen)
    return {
        "trials": trials, "counts": dict(counts), "by": {what: dict(c) for what, c in by.items()},
        "missed": misses[:LISTED], "unseen": unseen[:LISTED], "unseen, why": dict(reasons), "diagnosed as": named,
    }  # fmt: skip


def _one(
    on: RecordedModel, kernel: ShippedKernel, plan: Plan, rung: str, declares: bool, diagnoses: bool
) -> RungResult:  # fmt: skip
    faulty = OneBlock(kernel, plan, declares)
    if diagnoses:
        return on.run(faulty, plan.tensor, rung)
    # a diagnosis takes longest, and does not affect the place
    with mock.patch.object(explain, "MOST_DIAGNOSES", 0):
        return on.run(faulty, plan.tensor, rung)


def _why(on: RecordedModel, kernel: ShippedKernel, plan: Plan, rung: str, declares: bool) -> str:
    """Return why nothing was reported: no output changed, or the changed outputs are within the bound and the score."""
    looking = dataclasses.replace(plan, look=True)
    _one(on, kernel, looking, rung, declares, False)
    if not looking.changed:
        return "no output has other bits"
    return "MISSED: bits differ" if declares else "within the bound and the score, of a kernel that declares no order"


def rows(found: dict[str, Any]) -> list[list[str]]:
    """Return table rows: quantity, measured, goal."""
    out = []
    for rung in _TRIED:
        right, missed, unseen, row = (
            found["counts"].get(f"{rung}: {what}", 0) for what in ("named", "missed", "unseen", "row named alone")
        )
        seen = right + missed
        share = f"{percent(right, seen)} ({right:,} of {seen:,})"
        if unseen:
            share += f"; {unseen:,} more change nothing that is judged"
        if row:
            share += f"; for {row:,} more it names the row only, since the block's product alone has the right bits"
        out.append([f"the {rung} rung names tensor, row and block of a fault in one block", share, "100 %"])
    return out
