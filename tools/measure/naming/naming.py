"""Quality of diagnoses and localisation, on real weights and activations.

Every variant of every fault in the catalogue, in every definition of every format, is replayed and diagnosed. So are
kernels compiled from altered sources (edits.py), and faults outside the catalogue, for which every name is wrong.
Faults of one block go through the rungs (places.py). The figures include the versions of catalogue and probe plan.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.diagnosis.diagnose import FEWEST, Diagnosis, diagnose
from gguf_verify.diagnosis.fault import Case
from gguf_verify.diagnosis.faults import FAULTS
from gguf_verify.diagnosis.identify import definitions
from gguf_verify.diagnosis.operands import Predicted
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.library import Llama
from gguf_verify.rungs.plan import PLAN
from gguf_verify.support import scratch
from gguf_verify.support.errors import EnvironmentFault, KernelFault
from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import PACKAGE

from .. import results
from ..inputs import QUANTIZED, UNQUANTIZED, WEIGHTS, Floats, Matrix, captured, requantized, text
from ..markdown import percent
from ..measure import Measure
from ..workers import workers
from . import guarded_faults, places
from .edits import EDITS, NO_EDIT, Edit, altered, chosen

#: Rows and tokens of a product that is diagnosed, and further rows that altered kernels may read.
ROWS, TOKENS, SPARE = 24, 9, 8
#: Row lengths of the fixtures.
LENGTHS = (256, 768)
#: Answers, the best first.
ALONE, TOGETHER, DEFINITION, UNKNOWN, WRONG = "alone", "together", "another definition", "unknown", "wrong"
#: Too few outputs change for a diagnosis.
SILENT = "changes too little"
#: The parts of the figures that count answers.
_COUNTED = ("catalogue", "outside", "sources", "sources outside")

_FAULTS = {fault.id: fault for fault in FAULTS}

Diagnose = Callable[..., Diagnosis]


def answer(found: Diagnosis, fault: str) -> str:
    """Rate the diagnosis of a fault's outputs. For a fault outside the catalogue ("") UNKNOWN is correct."""
    if found.wrong < FEWEST:
        return SILENT
    ids = {f.id for f in found.faults}
    named = _FAULTS[fault].named_by(ids) if fault in _FAULTS else fault in ids
    if found.definitions:
        return DEFINITION if not ids or named else WRONG
    if not ids:
        return UNKNOWN
    if not named:
        return WRONG
    return ALONE if len(ids) == 1 else TOGETHER


# -- real weights and activations --------------------------------------------------------------------------------------


@cache
def graph(path: Path, seed: int) -> tuple[Matrix, ...]:
    """Return the model's matrices with their activations for a text chosen by the seed."""
    return tuple(captured(path, [text(seed, 40)], 3 * TOKENS))


@cache
def real(kind: str, seeds: tuple[int, ...]) -> tuple[tuple[int, Matrix], ...]:
    """Return, for each seed and row length, the seed and ROWS + SPARE rows of a matrix that it chooses, in the format,
    with TOKENS tokens. If a fixture has that type, they are the model's own bytes."""
    fmt = FORMATS[kind]
    own = [p for p in QUANTIZED if p.stem == f"tiny-{kind}"]
    out = []
    with Llama() as llama:
        for seed, k in product(seeds, LENGTHS):
            rng = np.random.default_rng((seed, fmt.type_id, k))
            found = [m for m in graph(own[0] if own else UNQUANTIZED, seed) if m.k == k]
            matrix = found[int(rng.integers(len(found)))]
            first = int(rng.integers(max(1, len(matrix.rows) - ROWS - SPARE)))
            at = int(rng.integers(max(1, len(matrix.x) - TOKENS)))
            x = np.ascontiguousarray(matrix.x[at : at + TOKENS])
            rows = np.ascontiguousarray(matrix.rows[first : first + ROWS + SPARE])
            matrix = replace(matrix, rows=rows, x=x)
            out.append((seed, matrix if own else requantized(matrix, fmt, llama, ROWS + SPARE)))
    return tuple(out)


# -- the catalogue, replayed -------------------------------------------------------------------------------------------


def rounded(p: Predicted, rng: np.random.Generator, exactly: bool) -> Floats:
    """Return possible outputs of a kernel with a fault: some rounding of the predicted values, and random values where
    the fault predicts none."""
    noise = 0.0 if exactly else 0.005 * np.where(np.isfinite(p.bound), p.bound, 0) * rng.uniform(-1, 1, p.exact.shape)
    y = np.where(True if p.known is None else p.known, p.exact + noise, rng.standard_normal(p.exact.shape))
    with np.errstate(over="ignore"):
        return y.astype(np.float32)


@dataclass(frozen=True)
class Outcome:
    """The answer to one faulty product: `answer`, with the ids that were `named`."""

    fault: str
    which: str
    type: str
    definition: str
    seed: int
    tensor: str
    answer: str
    named: tuple[str, ...]


def outcome(fault: str, which: str, matrix: Matrix, definition: str, seed: int, found: Diagnosis) -> Outcome:
    """Diagnose a fault's outputs and rate the answer."""
    names = tuple(f.id for f in found.faults) + found.definitions
    tensor = f"{matrix.source} {matrix.tensor}"
    return Outcome(fault, which, matrix.fmt.name, definition, seed, tensor, answer(found, fault), names)


def replays(
    fmt: BlockFormat, matrix: Matrix, seed: int, diagnose_by: Diagnose = diagnose, every: int = 1
) -> Iterator[Outcome]:
    """Diagnose each variant of each fault in each definition, or one in `every`; of faults with many variants, a
    sample."""
    rows = np.ascontiguousarray(matrix.rows[:ROWS])
    rng = np.random.default_rng((seed, fmt.type_id))
    number = 0
    for semantics in definitions(fmt):
        case = Case(semantics, fmt, rows, semantics.bytes_of(matrix.x), matrix.x)
        for fault in FAULTS:
            for which, made in fault.sample(case, seed + number):
                number += 1
                if number % every:
                    continue
                p = made if isinstance(made, Predicted) else made.predicted()
                y = rounded(p, rng, fault.id.endswith("accumulator"))
                with np.errstate(all="ignore"):
                    found = diagnose_by(y, fmt, semantics, rows, matrix.x)
                yield outcome(fault.id, which, matrix, semantics.name, seed, found)


def replayed(kind: str, seeds: Sequence[int], every: int = 1, diagnose_by: Diagnose = diagnose) -> list[Outcome]:
    """Return all replays of a format."""
    out: list[Outcome] = []
    for seed, matrix in real(kind, tuple(seeds)):
        out += replays(FORMATS[kind], matrix, seed, diagnose_by, every)
    return out


# -- altered kernels ---------------------------------------------------------------------------------------------------


def edited(edit: Edit, kind: str, seeds: Sequence[int], diagnose_by: Diagnose = diagnose) -> list[Outcome]:
    """Diagnose a kernel compiled from altered sources, on a matrix for each seed and row length.

    Raises EnvironmentFault if it does not compile.
    """
    fmt, out = FORMATS[kind], []
    with scratch.temporary("measure") as folder:
        kernel = ShippedKernel(KERNELS[edit.kernel], CpuHost(1), altered(folder, edit, kind))
        semantics = kernel.definition
        for seed, matrix in real(kind, tuple(seeds)):
            rows = np.ascontiguousarray(matrix.rows[:ROWS])
            # with a wrong stride it reads further rows, as it would in a larger matrix
            weights = replace(kernel.upload(fmt, matrix.rows), n=ROWS)
            try:
                y = kernel.product(weights, matrix.x)
            except KernelFault as fault:
                raise EnvironmentFault(f"{edit.what}, {kind}: {fault}") from None
            found = diagnose_by(y, fmt, semantics, rows, matrix.x)
            out.append(outcome(edit.fault, edit.what, matrix, semantics.name, seed, found))
    return out


def _guarded(work: tuple[int, str], seed: int) -> list[guarded_faults.Outcome]:
    """Diagnose fault number `work[0]` under a random condition, on a matrix of type `work[1]`."""
    matrices = real(work[1], (seed,))
    found = guarded_faults.tried(matrices[work[0] % len(matrices)][1], work[0], seed)
    return [found] if found else []


def _edited(work: tuple[Edit, str], seeds: Sequence[int]) -> list[Outcome]:
    return edited(*work, seeds)


# -- faults that are not in the catalogue ------------------------------------------------------------------------------


def outside(kind: str, seeds: Sequence[int], diagnose_by: Diagnose = diagnose) -> list[Outcome]:
    """Diagnose faults outside the catalogue on real weights and activations: factors, which are fitted to the outputs,
    and faults without a name ("")."""
    fmt, out = FORMATS[kind], []
    for seed, matrix in real(kind, tuple(seeds)):
        rows = np.ascontiguousarray(matrix.rows[:ROWS])
        for semantics in definitions(fmt):
            p = Case(semantics, fmt, rows, semantics.bytes_of(matrix.x), matrix.x).parts
            value, term = np.arange(p.q.shape[2]), np.arange(p.d.shape[1])
            # a definition that rounds between its terms is not their sum
            position, block = ("", "") if p.half_products else ("position-factor", "block-factor")
            every_other = "" if p.half_products else "term-factor" if p.m.any() else "constant-factor"
            made = {
                "one per cent": ("constant-factor", replace(p, d=1.01 * p.d, m=1.01 * p.m)),
                "a tenth of a per cent of weights' scales of every other row": (
                    every_other, replace(p, d=p.d * np.where(np.arange(len(p.d)) % 2, 1.001, 1)[:, None])
                ),
                "a value of each term left out": (position, replace(p, q=p.q * (value != 5))),
                "a code of each term negated": (position, replace(p, a=p.a * np.where(value == 9, -1, 1))),
                "the first term left out": (block, replace(p, d=p.d * (term > 0))),
                "codes reversed": ("", replace(p, a=p.a[..., ::-1])),
                "codes rotated": ("", replace(p, a=np.roll(p.a, 1, axis=-1))),
                "terms reversed": ("", replace(p, q=p.q[:, ::-1])),
                "one code off by one": ("", replace(p, q=p.q + (value == 3))),
            }  # fmt: skip
            if semantics.activations is not None:
                made["0.01 per cent"] = "constant-factor", replace(p, e=1.0001 * p.e, s=1.0001 * p.s)
                if semantics.activations.block_size < matrix.k:  # otherwise it equals the neighbouring block's
                    made["scales of the next token"] = "", replace(p, e=np.roll(p.e, 1, axis=0))
            for which, (fault, parts) in made.items():
                y = parts.predicted().exact.astype(np.float32)
                found = diagnose_by(y, fmt, semantics, rows, matrix.x)
                out.append(outcome(fault, which, matrix, semantics.name, seed, found))
    return out


# -- figures -----------------------------------------------------------------------------------------------------------


def tallied(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count answers by fault and format, and list every incorrect answer."""
    counts = Counter(o.answer for o in outcomes)
    by_fault: dict[str, Counter[str]] = {}
    by_type: dict[str, Counter[str]] = {}
    for o in outcomes:
        by_fault.setdefault(o.fault or "none of the catalogue", Counter())[o.answer] += 1
        by_type.setdefault(o.type, Counter())[o.answer] += 1
    together = Counter(" = ".join(sorted(set(o.named))) for o in outcomes if o.answer == TOGETHER)
    return {
        "products": len(outcomes), "answers": dict(counts), "changing": len(outcomes) - counts[SILENT],
        "by fault": {k: dict(v) for k, v in by_fault.items()}, "by type": {k: dict(v) for k, v in by_type.items()},
        "named together": dict(together.most_common()),
        **{
            name: [vars(o) for o in outcomes if o.answer == name and (o.fault or name != UNKNOWN)]
            for name in (WRONG, UNKNOWN, DEFINITION)
        },
    }  # fmt: skip


@cache
def _version() -> str:
    """The versions of catalogue and plan, and a digest of the diagnosis code."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(PACKAGE.glob("diagnosis/**/*.py"))))
    return f"{len(FAULTS)} faults, probe plan {PLAN}, diagnosis {digest.hexdigest()[:8]}"


class Kept:
    """Finished diagnoses in a file of JSON lines, one item per line.

    Args:
        path: the file; None: keep nothing.
        run: the identity of the run; outcomes of other runs are ignored.
    """

    def __init__(self, path: Path | None, run: str) -> None:
        self._path, self._run = path, run
        self.outcomes: dict[str, list[Outcome]] = {}
        for entry in results.read_lines(path) if path else ():
            if entry.get("run") == run:
                some = [Outcome(**{**o, "named": tuple(o["named"])}) for o in entry["outcomes"]]
                self.outcomes[entry["item"]] = some

    def add(self, item: str, some: Sequence[Outcome]) -> None:
        """Keep the outcomes of an item."""
        if self._path:
            results.append_line(self._path, {"run": self._run, "item": item, "outcomes": [vars(o) for o in some]})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of texts, matrices and rows")
    add("--types", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS), metavar="TYPE", help="weight types to use")
    add("-j", "--jobs", type=int, default=1, help="number of processes (%(default)s)")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save the progress here; a later run with the same seeds resumes from it",
    )
    add("--places", type=int, default=200, help="number of one-block faults per type (%(default)s)")
    add("--guarded", type=int, default=200, help="number of faults under random conditions (%(default)s)")
    results.add_argument(parser)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures for JSON. Raises EnvironmentFault if llama.cpp or a compiler is missing."""
    formats = [name for name in options.types if name in FORMATS]
    with workers(options.jobs) as over:

        def each(what: str, f: Callable[[Any], list[Outcome]], work: Sequence[Any]) -> list[Outcome]:
            kept = Kept(options.checkpoint, f"{_version()}, seeds {options.seeds}, {what}")
            found = [outcome for item in work for outcome in kept.outcomes.get(repr(item), ())]
            left = [item for item in work if repr(item) not in kept.outcomes]
            for number, some in enumerate(over(f, left), 1 + len(work) - len(left)):
                kept.add(repr(left[number - 1 - len(work) + len(left)]), some)
                found += some
                wrong = sum(o.answer == WRONG for o in found)
                print(f"{what}: {number} of {len(work)}, {len(found)} products, {wrong} wrong", file=sys.stderr)
            return found

        catalogue = each("catalogue", partial(replayed, seeds=options.seeds), formats)
        others = each("outside it", partial(outside, seeds=options.seeds), formats)
        work = [of for of in zip(range(options.guarded), cycle(guarded_faults.TYPES), strict=False) if of[1] in formats]
        guarded = [of for some in over(partial(_guarded, seed=options.seeds[0]), work) for of in some]
        sources = each("altered sources", partial(_edited, seeds=options.seeds), chosen(formats))
    placed = None
    if options.places:
        placed = places.localised(options.types, options.places, options.seeds[0], processes=options.jobs)
    return {
        "version": _version(), "seeds": list(options.seeds), "types": options.types,
        "catalogue": tallied(catalogue),
        "outside": tallied(others),
        "sources": tallied([o for o in sources if o.fault]),
        "sources outside": tallied([o for o in sources if not o.fault]),
        "edits": len({e.what + e.fault for e in EDITS if e.fault}), "no edit": NO_EDIT,
        "places": placed, "guarded": guarded_faults.tallied(guarded),
    }  # fmt: skip


def _share(part: int, whole: int) -> str:
    return f"{percent(part, whole)} ({part:,} of {whole:,})" if whole else "none"


#: The version of results without one.
_BEFORE = "an earlier and smaller catalogue, before results kept its version"


def rows(figures: dict[str, Any]) -> list[list[str]]:
    """Return table rows: quantity, measured, goal."""
    out = [["measured of", figures.get("version", _BEFORE), ""]]
    for name, what in (
        ("catalogue", "faults of the catalogue, replayed"),
        ("sources", "faults of the catalogue, as edits of the sources"),
    ):
        answers, changing = Counter(figures[name]["answers"]), figures[name]["changing"]
        out += [
            [f"correct name: {what}", _share(answers[ALONE] + answers[TOGETHER], changing), "≥ 95 %"],
            [f"incorrect name: {what}", _share(answers[WRONG], changing), "0 %"],
            [f"taken for another definition: {what}", _share(answers[DEFINITION], changing), ""],
        ]
    others = [figures[name] for name in ("outside", "sources outside")]
    wrong = sum(len(of[WRONG]) for of in others)
    out.append([
        "incorrect name: faults that are not in the catalogue", _share(wrong, sum(of["changing"] for of in others)),
        "0 %",
    ])  # fmt: skip
    if figures.get("guarded"):
        out += guarded_faults.rows(figures["guarded"])
    return out + (places.rows(figures["places"]) if figures["places"] else [])


def faults(figures: dict[str, Any]) -> list[str]:
    """Return a line for each incorrect name and each missed place."""
    named = [o for name in _COUNTED for o in figures[name][WRONG]]
    missed = figures["places"]["missed"] if figures["places"] else []
    return [*(f"WRONG {json.dumps(o)}" for o in named), *(f"MISSED {json.dumps(place)}" for place in missed)]


def _run(options: argparse.Namespace) -> int:
    results.load(options.results)  # fail now rather than after hours of work
    figures = measured(options)
    results.update(options.results, naming=figures)
    wrong = faults(figures)
    write_lines("\n".join([*map(" | ".join, rows(figures)), *wrong]))
    return bool(wrong)


MEASURE = Measure("naming", "whether diagnoses and localisations are correct", __doc__ or "", add_arguments, _run)
