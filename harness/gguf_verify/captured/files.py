"""Captured products in files: arrays beside a tensor of a model, or a folder of `--save-case`.

The arrays are foreign: nothing in them is unpickled, and their headers are compared with the tensor before any data is
read.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import ELEMENTS, FORMATS, WeightFormat
from ..gguf.matrices import may_be_matrix
from ..gguf.model import open_model
from ..semantics.definition import Semantics
from ..support.command_line import command_line, cores
from ..support.errors import NothingToVerify, UsageError
from ..support.files import note_input, read_input
from ..support.npy import first_line, open_array
from ..support.text import counted, printable, quoted
from .arrays import open_captured
from .judge import Sample, claimable, judge_sample
from .records import AUTO, Judged, WrongOutput

Bytes = npt.NDArray[np.uint8]

#: The most tokens; bytes of a case's description.
MOST_TOKENS, _MOST_JSON = 1 << 20, 1 << 20


def judge_captured(
    path: Path | str, tensor: str, x: Path | str | npt.NDArray[Any], y: Path | str | npt.NDArray[Any],
    definition: str = AUTO, rows: tuple[int, int] | None = None, *, shape: tuple[int, int] | None = None,
    threads: int = 0, fast_math: bool = False, taken: Path | str | npt.NDArray[Any] | None = None, command: str = "",
) -> Judged:  # fmt: skip
    """Judge a captured product y = x·Wᵀ.

    Args:
        path: the model, or the first part of a split one.
        tensor: the name of the weights.
        x: the activations before any quantization, [M, K], float32, float16 or bfloat16: an array, or a file that
            `captured.arrays` reads.
        y: the outputs, [M, N], likewise. If M ≠ N, [N, M] is recognised; [K, M] of x as well.
        definition: the definition that the engine claims to compute, from the table in `docs/concepts.md`; "auto":
            find it.
        rows: the first row of the tensor and the one after the last, counted through all its matrices (experts).
            None: all rows.
        shape: of x, for a file of plain numbers: (M, K), or (K, M) if it is transposed.
        threads: for the exact products; 0: one per core.
        fast_math: the engine's activation quantizer was built with approximate division (`-use_fast_math`). The bound
            is widened by |w|·d_a for each code that this may change.
        taken: uint8[M, row bytes]: the activation blocks of `definition`, if these were the engine's input.
        command: the command line that repeats it.

    An output of 16 bits was rounded once more: see `semantics.narrow`.

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
        names = _definitions(fmt, definition)
        with contextlib.ExitStack() as files:
            read_x = files.enter_context(open_captured("x", x, found.k, shape))
            values = read_x.values
            stated = None if shape is None else (len(values), stop - start)
            read_y = files.enter_context(open_captured("y", y, stop - start, stated))
            outputs = read_y.values
            if len(values) != len(outputs):
                raise UsageError(f"x has {counted(len(values), 'tokens')}, y has {len(outputs)}")
            if len(values) > MOST_TOKENS:
                raise UsageError(f"x has {len(values):,} tokens; at most {MOST_TOKENS:,} are judged")
            all_rows = found.raw.reshape(found.n_rows, found.row_bytes)[start:stop]
            blocks = None
            if taken is not None:
                blocks = _blocks(taken, names.get(definition), len(values), found.k)
            sample = Sample(fmt, all_rows, values, outputs, read_y.type, blocks)
            said: dict[str, Any] = {
                "file": str(model.path), "tensor": tensor, "type": fmt.name, "sha256": model.sha256(),
                "m": len(values), "n": stop - start, "k": found.k, "first_row": start, "output": read_y.type,
                "claimed": definition, "read": tuple(each.note for each in (read_x, read_y) if each.note),
                "command": command or _command(path, tensor, x, y, definition, rows, shape, fast_math),
            }  # fmt: skip
            made = judge_sample(sample, names, definition, threads or cores(), fast_math)
            if made["wrong"] and blocks is None:
                for turned, words in _turned(sample):
                    other = judge_sample(turned.some(), names, definition, threads or cores(), fast_math)
                    if other["outputs"] and not other["wrong"]:
                        made["lines"] = (words, *made["lines"])
    return Judged(**said, **_placed(made, start, found.offset, found.row_bytes, found.part))


def _turned(sample: Sample) -> Iterator[tuple[Sample, str]]:
    """Yield the sample with x, then y, in the other order of plain numbers, which a square shape does not show either;
    and what is said if it fits."""
    (m, k), n = sample.x.shape, sample.y.shape[1]
    if sample.x.flags.c_contiguous and min(m, k) > 1:
        yield replace(sample, x=sample.x.reshape(k, m).T), f"x is transposed: it fits as [K, M], {k} x {m}"
    if sample.y.flags.c_contiguous and min(m, n) > 1:
        yield replace(sample, y=sample.y.reshape(n, m).T), f"y is transposed: it fits as [N, M], {n} x {m}"


def _command(
    path: Path | str, tensor: str, x: object, y: object, definition: str, rows: tuple[int, int] | None,
    shape: tuple[int, int] | None, fast_math: bool,
) -> str:  # fmt: skip
    if not isinstance(x, Path | str) or not isinstance(y, Path | str):
        return ""
    flags: dict[str, str | None] = {"--tensor": tensor, "--x": str(x), "--y": str(y)}
    if shape is not None:
        flags["--shape"] = f"{shape[0]}x{shape[1]}"
    if definition != AUTO:
        flags["--definition"] = definition
    if rows is not None:
        flags["--rows"] = f"{rows[0]}:{rows[1]}"
    if fast_math:
        flags["--fast-math"] = None
    return command_line(str(path), flags, "judge")


def _definitions(fmt: WeightFormat, claimed: str) -> dict[str, Semantics]:
    """The definitions of a type, by name. Raises UsageError if the claimed one is not among them."""
    names = claimable(fmt)
    if claimed != AUTO and claimed not in names:
        raise UsageError(f"{fmt.name} has no definition {claimed[:40]!a}; it has: {', '.join([AUTO, *names])}")
    return names


def _placed(made: dict[str, Any], first_row: int, offset: int, row_bytes: int, part: int) -> dict[str, Any]:
    """The fields of `judge_sample`, with the place of the first wrong output in the file."""
    at = made.pop("at", None)
    if at is None:
        return made
    token, row, got, exact, bound = at
    use = abs(got - exact) / bound if bound else math.inf
    use = math.inf if math.isnan(use) else use
    row += first_row
    return made | {"first": WrongOutput(row, token, got, exact, bound, use, offset + row * row_bytes, part)}


def _blocks(given: Path | str | npt.NDArray[Any], semantics: Semantics | None, m: int, k: int) -> Bytes:
    """Read blocks of activations. Raises UsageError."""
    if semantics is None or semantics.activations is None:
        raise UsageError("blocks of activations need a definition that quantizes them: --definition")
    fmt = semantics.activations
    with open_array("taken", given, (m, k // fmt.block_size * fmt.block_bytes), ("uint8",)) as blocks:
        return np.ascontiguousarray(blocks)


@dataclass(frozen=True)
class CaseFiles:
    """The description in a folder of `--save-case`, checked, for `judge_case`."""

    folder: Path
    tensor: str
    type: str
    definition: str
    m: int
    n: int
    k: int


def read_case(folder: Path) -> CaseFiles:
    """Raises UsageError if the folder is not a case."""
    path = folder / "case.json"
    try:
        if not path.is_file():
            raise UsageError(
                f"{printable(str(folder))} is no folder of --save-case: it has no case.json. For arrays of your own, "
                "give MODEL.gguf, --tensor, --x and --y"
            )
        said = json.loads(read_input(path, "description of a case", _MOST_JSON))
        sizes = [said[name] for name in ("m", "n", "k")]
        words = [said[name] for name in ("tensor", "type", "definition")]
    except KeyError as error:
        raise UsageError(f"{printable(str(path))} is not the description of a case: it has no {error}") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
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
    case = read_case(Path(folder))
    fmt: WeightFormat | None = FORMATS.get(case.type) or ELEMENTS.get(case.type)
    if fmt is None:
        raise UsageError(f"the case is of type {printable(case.type, 40)}, which no definition multiplies")
    claimed = definition or case.definition
    names = _definitions(fmt, claimed)
    if case.k % fmt.block_size:
        raise UsageError(f"rows of {case.k} values are not a whole number of {fmt.name} blocks")
    row_bytes = case.k // fmt.block_size * fmt.block_bytes
    weights = case.folder / "w.bin"
    if not weights.is_file() or weights.stat().st_size != case.n * row_bytes:
        raise UsageError(
            f"{printable(str(weights))} does not contain {counted(case.n, 'rows')} of {counted(row_bytes, 'bytes')}"
        )
    note_input(weights, weights.stat())
    rows = np.memmap(weights, np.uint8, "r").reshape(case.n, row_bytes)
    x, y, taken = (case.folder / f"{name}.npy" for name in ("x", "y", "taken"))
    with (
        open_array("x", x, (case.m, case.k), ("float32",)) as values,
        open_array("y", y, (case.m, case.n), ("float32",)) as out,
    ):
        blocks = _blocks(taken, names.get(claimed), case.m, case.k) if taken.is_file() and claimed != AUTO else None
        made = judge_sample(Sample(fmt, rows, values, out, taken=blocks), names, claimed, threads or cores(), fast_math)
    flags: dict[str, str | None] = {"--definition": definition} if definition else {}
    return Judged(
        file=str(weights), tensor=case.tensor, type=fmt.name, sha256=(), m=case.m, n=case.n, k=case.k, first_row=0,
        output="float32", claimed=claimed, command=command_line(str(folder), flags, "judge"),
        **_placed(made, 0, 0, row_bytes, 0),
    )  # fmt: skip
