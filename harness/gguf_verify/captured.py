"""`gguf-verify judge`: judges a product y = x·Wᵀ of any engine from captured arrays.

x and y are `.npy` files, W is a tensor in the model's file. y is compared with the exact product of a definition; the
bound is the largest deviation that correct float32 arithmetic allows. If no definition is claimed, all are tried. No
kernel is run.

The arrays are untrusted: nothing is unpickled, and their headers are compared with the tensor before any data is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .diagnosis.diagnose import MOST_ROWS, diagnose
from .diagnosis.diagnose import MOST_TOKENS as DIAGNOSED_TOKENS
from .diagnosis.identify import Candidate, composed_definitions, definitions, expected, wider
from .formats import QK, BlockFormat, WeightFormat
from .gguf.matrices import may_be_matrix
from .gguf.model import open_model
from .results.diagnoses import FaultMatch
from .semantics.definition import Semantics
from .semantics.fast_math import ambiguous_codes
from .semantics.gates import judge
from .semantics.narrow import stored
from .semantics.power import Power
from .support.command_line import command_line, cores
from .support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, NothingToVerify, UsageError
from .support.files import note_input, read_input
from .support.npy import first_line, open_array
from .support.shown import Shown
from .support.text import printable, quoted
from .support.version import project_version

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: Requests a search for the definition that fits.
AUTO = "auto"
#: Reasons why outputs within a bound are still not verified: the bound is too weak to detect errors.
UNDERFLOWS = "all outputs that are not zero underflow: their type cannot distinguish them from zero"
MISSES_BLOCKS = "the loss of a single block of a row would stay within the bound for most outputs"
WEAK = "the bound would accept zero, or 0.9 times the exact output, for most outputs, so passing proves nothing"
#: Upper limit of tokens; outputs judged at a time; tokens and rows for the first comparison of definitions.
MOST_TOKENS, _CHUNK, _SOME_TOKENS, _SOME_ROWS = 1 << 20, 1 << 20, 32, 256
MOST_DIAGNOSED = DIAGNOSED_TOKENS, MOST_ROWS
#: Upper limit of a case's description, in bytes.
_MOST_JSON = 1 << 20


@dataclass(frozen=True)
class WrongOutput:
    """An output outside its bound.

    Args:
        row, token: the row of the tensor and the token of x.
        got, expected, bound, utilisation: the numbers.
        byte_offset, part: the start of the row: its offset, and the part of a split model.
    """

    row: int
    token: int
    got: float
    expected: float
    bound: float
    utilisation: float
    byte_offset: int
    part: int


@dataclass(frozen=True, repr=False)
class Judged(Shown):
    """The result for a captured product.

    Args:
        file, tensor, type: of the weights.
        sha256: of each part of the model.
        m, n, k: tokens, rows and columns.
        first_row: the first judged row of the tensor.
        output: the type of y: "float32" or "float16".
        claimed: the claimed definition; "auto" for none.
        definition: the definition that y was judged by: the claimed, the fitting or the nearest one.
        candidates: all definitions that were tried, on some rows and tokens, the nearest first.
        wrong: the number of outputs outside the bound.
        outputs: the number of judged outputs.
        utilisation, score: of the worst output.
        nmse: over all outputs.
        first: the first output outside the bound.
        left: why some or all outputs could not be judged.
        ambiguous: the number of activation codes that approximate division may change; the bound is widened for them.
        lines: an explanation of wrong outputs.
        faults: the faults of the catalogue that explain them.
        command: the command that repeats it.
        gguf_verify: this project's version.
    """

    file: str
    tensor: str
    type: str
    sha256: tuple[str, ...]
    m: int
    n: int
    k: int
    first_row: int
    output: str
    claimed: str
    definition: str
    candidates: tuple[Candidate, ...]
    wrong: int
    outputs: int
    utilisation: float
    score: float
    nmse: float
    first: WrongOutput | None = None
    left: tuple[str, ...] = ()
    ambiguous: int = 0
    lines: tuple[str, ...] = ()
    faults: tuple[FaultMatch, ...] = ()
    command: str = ""
    gguf_verify: str = field(default_factory=project_version)

    @property
    def exit_code(self) -> int:
        """1 if an output is wrong; otherwise 5 if some or all outputs could not be judged."""
        if self.wrong:
            return EXIT_MISMATCH
        return EXIT_UNVERIFIED if self.left or not self.outputs else EXIT_VERIFIED

    @property
    def verdict(self) -> Literal["verified", "mismatch", "not everything verified"]:
        """The exit code in words."""
        if self.wrong:
            return "mismatch"
        return "verified" if self.exit_code == EXIT_VERIFIED else "not everything verified"

    @property
    def fitting(self) -> tuple[str, ...]:
        """The definitions whose bound the outputs meet, on the rows and tokens where all were tried."""
        return tuple(c.name for c in self.candidates if c.within)


@dataclass(frozen=True)
class _Sample:
    """A captured product and its weights.

    x float32[M, K], y[M, N], rows uint8[N, row bytes]; taken uint8[M, row bytes]: the kernel's activation blocks, if
    known.
    """

    fmt: WeightFormat
    rows: Bytes
    x: Floats
    y: npt.NDArray[Any]
    taken: Bytes | None = None

    def window(self, at: tuple[int, int, Any, Any, Any] | None) -> _Sample:
        """The part around output `at` that is small enough for a diagnosis."""
        m, n = (0, 0) if at is None else (at[0] // MOST_DIAGNOSED[0], at[1] // MOST_DIAGNOSED[1])
        tokens = slice(m * MOST_DIAGNOSED[0], (m + 1) * MOST_DIAGNOSED[0])
        rows = slice(n * MOST_DIAGNOSED[1], (n + 1) * MOST_DIAGNOSED[1])
        taken = None if self.taken is None else self.taken[tokens]
        return _Sample(
            self.fmt, np.ascontiguousarray(self.rows[rows]), np.ascontiguousarray(self.x[tokens]), self.y[tokens, rows],
            taken,
        )  # fmt: skip

    def some(self) -> _Sample:
        """A sample of evenly spaced rows and tokens."""
        m, n = len(self.x), len(self.rows)
        tokens = np.unique(np.linspace(0, m - 1, min(m, _SOME_TOKENS)).astype(int))
        rows = np.unique(np.linspace(0, n - 1, min(n, _SOME_ROWS)).astype(int))
        taken = None if self.taken is None else self.taken[tokens]
        return _Sample(
            self.fmt, np.ascontiguousarray(self.rows[rows]), np.ascontiguousarray(self.x[tokens]),
            self.y[np.ix_(tokens, rows)], taken,
        )  # fmt: skip


@dataclass
class _Found:
    """The result of judging by one definition.

    Args:
        suspected: the number of outputs within the bound whose score is too large and which no lane order explains.
            They do not count as wrong, because a captured product cannot be computed again.
        typical: the median squared error over the first part of the outputs. A mean would be dominated by a few large
            errors, such as two exchanged rows, which say nothing about the definition of the other outputs.
    """

    wrong: int = 0
    suspected: int = 0
    utilisation: float = 0.0
    score: float = 0.0
    error: float = 0.0
    typical: float = math.inf
    energy: float = 0.0
    ambiguous: int = 0
    first: tuple[int, int, float, float, float] | None = None
    power: Power = field(default_factory=lambda: Power(0, 0))

    @property
    def verified(self) -> bool:
        """Whether no output is wrong, and the bound could have detected errors in most of them."""
        return not self.wrong and not self.power.says_nothing

    @property
    def nmse(self) -> float:
        return self.error / self.energy if self.energy else (0.0 if self.error == 0 else math.inf)


def judge_captured(
    path: Path | str, tensor: str, x: Path | str | npt.NDArray[Any], y: Path | str | npt.NDArray[Any],
    definition: str = AUTO, rows: tuple[int, int] | None = None, *, threads: int = 0, fast_math: bool = False,
    taken: Path | str | npt.NDArray[Any] | None = None, command: str = "",
) -> Judged:  # fmt: skip
    """Judge a captured product y = x·Wᵀ.

    Args:
        path: the model, or the first part of a split one.
        tensor: the name of the weights.
        x: the activations before any quantization: float32[M, K] or the path of an `.npy` file.
        y: the outputs: float32[M, N] or float16[M, N], or the path of an `.npy` file.
        definition: the definition that the engine claims to compute, from the table in `docs/concepts.md`; "auto":
            find it.
        rows: the first row of the tensor and the one after the last, counted through all its matrices (experts).
            None: all rows.
        threads: for the exact products; 0: one per core.
        fast_math: the engine's activation quantizer was built with approximate division (`-use_fast_math`). The bound
            is widened by |w|·d_a for each code that this may change.
        taken: uint8[M, row bytes]: the activation blocks of `definition`, if these were the engine's input.
        command: the command line that repeats it.

    A float16 output was rounded once more: see `semantics.narrow`.

    Raises:
        MalformedFile: the model cannot be read safely.
        NothingToVerify: no definition multiplies tensors of this type.
        UsageError: there is no such tensor or definition, or an array has the wrong type or shape.
    """
    with open_model(path) as model:
        found = model.tensors.get(tensor)
        if found is None:
            near = next((n for n in model.tensors if tensor and tensor in n), next(iter(model.tensors), ""))
            raise UsageError(f"no tensor is called {quoted(tensor)}; there is, for example, {quoted(near)}")
        fmt = found.type.weights
        if fmt is None or not may_be_matrix(found):
            raise NothingToVerify(f"{quoted(tensor)} is not a matrix that is multiplied ({found.type.name})")
        start, stop = (0, found.n_rows) if rows is None else rows
        if not 0 <= start < stop <= found.n_rows:
            raise UsageError(f"rows {start}:{stop} are out of range: {quoted(tensor)} has {found.n_rows} rows")
        names = _definitions(fmt)
        if definition != AUTO and definition not in names:
            raise UsageError(f"{fmt.name} has no definition {definition[:40]!a}; it has: {', '.join([AUTO, *names])}")
        with (
            open_array("x", x, (None, found.k), ("float32",)) as values,
            open_array("y", y, (None, stop - start), ("float32", "float16")) as outputs,
        ):
            if len(values) != len(outputs):
                raise UsageError(f"x has {len(values)} tokens, y has {len(outputs)}")
            if len(values) > MOST_TOKENS:
                raise UsageError(f"x has {len(values):,} tokens; at most {MOST_TOKENS:,} are judged")
            all_rows = found.raw.reshape(found.n_rows, found.row_bytes)[start:stop]
            blocks = None
            if taken is not None:
                blocks = _blocks(taken, names.get(definition), len(values), found.k)
            sample = _Sample(fmt, all_rows, values, outputs, blocks)
            said: dict[str, Any] = {
                "file": str(model.path), "tensor": tensor, "type": fmt.name, "sha256": model.sha256(),
                "m": len(values), "n": stop - start, "k": found.k, "first_row": start, "output": outputs.dtype.name,
                "claimed": definition, "command": command or _command(path, tensor, x, y, definition, rows, fast_math),
            }  # fmt: skip
            made = _judged(sample, names, definition, threads or cores(), fast_math)
    first = made.pop("at", None)
    if first is not None:
        token, row, got, exact, bound = first
        at = found.offset + (start + row) * found.row_bytes
        made["first"] = WrongOutput(start + row, token, got, exact, bound, _use(got, exact, bound), at, found.part)
    return Judged(**said, **made)


def _command(
    path: Path | str, tensor: str, x: object, y: object, definition: str, rows: tuple[int, int] | None, fast_math: bool
) -> str:
    if not isinstance(x, Path | str) or not isinstance(y, Path | str):
        return ""
    flags: dict[str, str | None] = {"--tensor": tensor, "--x": str(x), "--y": str(y)}
    if definition != AUTO:
        flags["--definition"] = definition
    if rows is not None:
        flags["--rows"] = f"{rows[0]}:{rows[1]}"
    if fast_math:
        flags["--fast-math"] = None
    return command_line(str(path), flags, "judge")


# ---- judging ---------------------------------------------------------------------------------------------------------


def _judged(
    sample: _Sample, names: dict[str, Semantics], claimed: str, threads: int, fast_math: bool
) -> dict[str, Any]:
    """Return the computed fields of `Judged`; "at" is the first wrong output."""
    nothing: dict[str, Any] = {
        "definition": claimed, "candidates": (), "wrong": 0, "outputs": 0, "utilisation": 0.0, "score": 0.0,
        "nmse": 0.0,
    }  # fmt: skip
    if not len(sample.x):
        return nothing | {"left": ("x has no token",)}
    finite = np.concatenate([np.isfinite(part).all(axis=1) for part in _parts(sample.x)])
    left: list[str] = []
    if not finite.all():
        left.append(f"{int((~finite).sum()):,} of {len(finite):,} tokens of x contain values that are not finite")
        keep = np.flatnonzero(finite)
        if not len(keep):
            return nothing | {"left": tuple(left)}
        taken = None if sample.taken is None else sample.taken[keep]
        sample = _Sample(sample.fmt, sample.rows, sample.x[keep], sample.y[keep], taken)
        number = keep
    else:
        number = np.arange(len(finite))
    some = sample.some()
    first = {s.name: s for s in [*definitions(sample.fmt), *wider(sample.fmt)]}
    tried = first if claimed == AUTO else {claimed: names[claimed]}
    tries: list[tuple[Candidate, float]] = []
    # nothing was declared, so the wide bounds of weights decoded in steps would accept wrong outputs
    pairs = [s for s in names.values() if s.name not in first and not s.term.steps]
    for semantics in [*tried.values(), *pairs] if claimed == AUTO else tried.values():
        if semantics.name not in tried and any(c.within for c, _ in tries):
            break  # other pairs of an encoding and a term are only tried if no known definition fits
        found = _by(some, semantics, threads, fast_math)
        within = found.verified and found.energy > 0  # every definition gives zeros for zeros
        tries.append((Candidate(semantics.name, found.utilisation, found.score, found.nmse, within), found.typical))
    candidates = [c for c, _ in sorted(tries, key=lambda t: (not t[0].within, t[1]))]
    fits = [c.name for c in candidates if c.within]
    results = {}
    for name in fits or [candidates[0].name]:
        results[name] = _by(sample, names[name], threads, fast_math)
        if not results[name].wrong:
            break
    best = min(results, key=lambda name: results[name].wrong)
    found = results[best]
    if found.suspected and not found.wrong:
        left.append(
            f"{found.suspected:,} outputs are within the bound, but further off than independent roundings explain. "
            "The cause may be structured data or a fault; capture a product of other activations"
        )
    if not found.energy:
        left.append("the exact product is zero everywhere, for every definition")
    elif found.power.lacking:
        left.append(WEAK)
    elif found.power.empty:
        left.append(UNDERFLOWS)
    elif found.power.misses_blocks:
        left.append(MISSES_BLOCKS)
    at = found.first
    lines: tuple[str, ...] = ()
    faults: tuple[FaultMatch, ...] = ()
    if found.wrong:
        lines, faults = _explained(sample.window(at), names[best], threads)
        for name in tried if not fits else ():  # if no definition is near, try the faults of each
            if not faults and name != best:
                others = _explained(sample.window(at), names[name], threads)
                if others[1]:
                    best, (lines, faults), found = name, others, _by(sample, names[name], threads, fast_math)
                    at = found.first
    return nothing | {
        "definition": best, "candidates": tuple(candidates), "wrong": found.wrong,
        "outputs": sample.y.size if found.energy or found.wrong else 0, "utilisation": found.utilisation,
        "score": found.score, "nmse": found.nmse, "left": tuple(left), "ambiguous": found.ambiguous, "lines": lines,
        "faults": faults, "at": None if at is None else (int(number[at[0]]), *at[1:]),
    }  # fmt: skip


def _definitions(fmt: WeightFormat) -> dict[str, Semantics]:
    """The definitions that may be claimed, by name: those that are tried, and all others that a kernel may declare."""
    return {s.name: s for s in [*definitions(fmt), *wider(fmt), *composed_definitions(fmt)]}


def _use(got: float, exact: float, bound: float) -> float:
    """|got - exact| / bound; infinite for NaN."""
    use = abs(got - exact) / bound if bound else math.inf
    return math.inf if math.isnan(use) else use


def _explained(sample: _Sample, semantics: Semantics, threads: int) -> tuple[tuple[str, ...], tuple[FaultMatch, ...]]:
    given: npt.NDArray[Any] = np.ascontiguousarray(sample.x) if sample.taken is None else sample.taken
    with np.errstate(all="ignore"):
        y = np.ascontiguousarray(sample.y, np.float32)
    told = diagnose(y, sample.fmt, semantics, sample.rows, given, threads=threads)
    return tuple(told.lines), told.faults


def _parts(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Split an array into groups of rows with about 2^22 values each."""
    step = max(1, (1 << 22) // max(1, array.shape[1]))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def _by(sample: _Sample, semantics: Semantics, threads: int, fast_math: bool) -> _Found:
    """Judge by one definition, some tokens and rows at a time."""
    found, fmt = _Found(), sample.fmt
    m, n = sample.y.shape
    tokens = max(1, min(m, _CHUNK // 256))
    step = max(1, _CHUNK // tokens)
    for first in range(0, m, tokens):
        part = slice(first, first + tokens)
        x = np.ascontiguousarray(sample.x[part], np.float32)
        taken = None if sample.taken is None else np.ascontiguousarray(sample.taken[part])
        for start in range(0, n, step):
            rows = np.ascontiguousarray(sample.rows[start : start + step])
            got = sample.y[part, start : start + step]
            p = expected(semantics, fmt, rows, x, threads, taken)
            if got.dtype.type is np.float16:
                p = stored(p, "float16")
            with np.errstate(all="ignore"):
                slack = np.zeros(p.exact.shape)
                if fast_math and semantics.activations is not None and isinstance(fmt, BlockFormat):
                    more, codes = _ambiguous(semantics, fmt, rows, x)
                    slack += more
                    found.ambiguous += codes if not start else 0
                y = np.ascontiguousarray(got, np.float32)
                judgement = judge(y, p, slack)
                difference = (y.astype(np.float64) - p.exact) ** 2
                found.error += float(difference.sum()) if np.isfinite(difference).all() else math.inf
                if not first and not start and np.isfinite(middle := np.median(difference)):
                    found.typical = float(middle)
                found.energy += float(np.where(np.isfinite(p.exact), p.exact**2, 0).sum())
            hard = judgement.bad & ~judgement.suspected
            found.wrong += int(hard.sum())
            found.suspected += int(judgement.suspected.sum())
            found.power = found.power.joined(judgement.power)
            found.utilisation = max(found.utilisation, judgement.utilisation)
            found.score = max(found.score, judgement.score)
            if hard.any() and found.first is None:
                a, b = (int(i) for i in np.argwhere(hard)[0])
                bound = float(p.bound[a, b] + slack[a, b])
                found.first = first + a, start + b, float(y[a, b]), float(p.exact[a, b]), bound
    return found


def _ambiguous(semantics: Semantics, fmt: BlockFormat, rows: Bytes, x: Floats) -> tuple[npt.NDArray[np.float64], int]:
    """Return the possible change of each output, [M, N], by a step of every ambiguous code, and the number of codes.

    A step changes an output by |w|·d_a. If offsets and minima are multiplied by the sum s, which is independent of the
    codes, the change is |d_w|·q_w·d_a.
    """
    may = ambiguous_codes(x)
    if not may.any():
        return np.zeros((len(x), len(rows))), 0
    step = np.repeat(np.abs(x.reshape(len(x), -1, QK)).max(axis=-1) / 127, QK, axis=1)
    blocks = rows.reshape(len(rows), -1, fmt.block_bytes)
    w = fmt.decode(blocks).reshape(len(rows), -1).astype(np.float64)
    if (semantics.inside or semantics).uses_sum(fmt):
        scales = fmt.scales(blocks).astype(np.float64).reshape(len(rows), -1)
        codes = fmt.codes(blocks).astype(np.float64).reshape(len(rows), -1)
        w = codes * np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)
    w = np.abs(w)
    return (may * step.astype(np.float64)) @ w.T, int(may.sum())


# ---- foreign arrays --------------------------------------------------------------------------------------------------


def _blocks(given: Path | str | npt.NDArray[Any], semantics: Semantics | None, m: int, k: int) -> Bytes:
    """Read blocks of activations. Raises UsageError."""
    if semantics is None or semantics.activations is None:
        raise UsageError("blocks of activations need a definition that quantizes them: --definition")
    fmt = semantics.activations
    with open_array("taken", given, (m, k // fmt.block_size * fmt.block_bytes), ("uint8",)) as blocks:
        return np.ascontiguousarray(blocks)


# ---- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaseFiles:
    """The checked description in a folder of `--save-case`, for `judge_case`."""

    folder: Path
    tensor: str
    type: str
    definition: str
    m: int
    n: int
    k: int


def read_case(folder: Path) -> CaseFiles:
    """Read the description of a case. Raises UsageError if the folder is not a case."""
    path = folder / "case.json"
    try:
        if not path.is_file():
            raise UsageError(f"{printable(str(folder))} is not a case: it has no case.json")
        said = json.loads(read_input(path, "description of a case", _MOST_JSON))
        sizes = [said[name] for name in ("m", "n", "k")]
        words = [said[name] for name in ("tensor", "type", "definition")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{printable(str(path))} is not the description of a case: {first_line(error)}") from None
    if not all(type(s) is int and 0 < s < 1 << 40 for s in sizes) or not all(isinstance(w, str) for w in words):
        raise UsageError(f"{printable(str(path))} is not the description of a case")
    return CaseFiles(folder, *words, *sizes)


def judge_case(folder: Path | str, definition: str = "", *, threads: int = 0, fast_math: bool = False) -> Judged:
    """Judge the files of `--save-case`, which hold the weights too.

    Args:
        definition: used instead of the definition in the case; "auto": find it.
        threads, fast_math: see `judge_captured`.

    Raises UsageError if the folder is not a case, or its arrays do not match its description.
    """
    from .formats import ELEMENTS, FORMATS

    case = read_case(Path(folder))
    fmt: WeightFormat | None = FORMATS.get(case.type) or ELEMENTS.get(case.type)
    if fmt is None:
        raise UsageError(f"the case is of type {printable(case.type, 40)}, which no definition multiplies")
    names = _definitions(fmt)
    claimed = definition or case.definition
    if claimed != AUTO and claimed not in names:
        raise UsageError(f"{fmt.name} has no definition {claimed[:40]!a}; it has: {', '.join([AUTO, *names])}")
    if case.k % fmt.block_size:
        raise UsageError(f"rows of {case.k} values are not a whole number of {fmt.name} blocks")
    row_bytes = case.k // fmt.block_size * fmt.block_bytes
    weights = case.folder / "w.bin"
    if not weights.is_file() or weights.stat().st_size != case.n * row_bytes:
        raise UsageError(f"w.bin does not contain {case.n} rows of {row_bytes} bytes")
    note_input(weights, weights.stat())
    rows = np.memmap(weights, np.uint8, "r").reshape(case.n, row_bytes)
    x, y, taken = (case.folder / f"{name}.npy" for name in ("x", "y", "taken"))
    with (
        open_array("x", x, (case.m, case.k), ("float32",)) as values,
        open_array("y", y, (case.m, case.n), ("float32",)) as out,
    ):
        blocks = _blocks(taken, names.get(claimed), case.m, case.k) if taken.is_file() and claimed != AUTO else None
        made = _judged(_Sample(fmt, rows, values, out, blocks), names, claimed, threads or cores(), fast_math)
    at = made.pop("at", None)
    if at is not None:
        token, row, got, exact, bound = at
        made["first"] = WrongOutput(row, token, got, exact, bound, _use(got, exact, bound), row * row_bytes, 0)
    flags: dict[str, str | None] = {"--definition": definition} if definition else {}
    return Judged(
        file=str(weights), tensor=case.tensor, type=fmt.name, sha256=(), m=case.m, n=case.n, k=case.k, first_row=0,
        output="float32", claimed=claimed, command=command_line(str(folder), flags, "judge"), **made,
    )  # fmt: skip
