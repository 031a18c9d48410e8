"""Readings of a file by different readers, and their comparison with each other and with ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Literal, NamedTuple

from ..formats.tensor_types import tensor_type
from ..gguf.file import GgufFile
from ..gguf.model import Model
from ..gguf.records import Finding, finding
from ..llama.loading import for_another_program
from ..llama.reader_process import Load
from ..support.text import quoted

Verdict = Literal["accepted", "refused", "broke", "stopped"]
LLAMA = "llama.cpp"
_TOKENIZER = "tokenizer.ggml.model"

#: Reader → rules for which it refuses files that we accept. No other finding explains a refusal.
EXPLAIN = {
    "gguf-py": ("bad-utf8",),
    "llama.cpp": ("nested-array", "offset-order", "gap", "zero-with-data", "padding-cut"),
}


class Seen(NamedTuple):
    """A tensor as a reader sees it.

    Args:
        name: the name as the reader read it; bytes that are not UTF-8 are surrogates.
        shape: row length first, without trailing ones, so () for a single value.
        type_id: ggml's number of its type.
        offset: absolute byte offset of its data.
        nbytes: size of its data in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Reading:
    """One reader's result for one file.

    Args:
        reader: one of `READERS`.
        verdict: "broke" if it crashed; "stopped" if it hung, ran out of memory or found more than it can report.
        said: why it refused; how it broke, such as "crashed (SIGABRT): last line of output"; why it was stopped, such
            as "hung: no answer in 60 s"; or what it skipped. Escaped.
        data_offset: absolute byte offset that tensor offsets are relative to; None if it did not accept the file.
        tensors: in the reader's order.
        loads: whether it also loads the file as a model; None if not tried.
        not_loaded: why not, in its own words, or why it was not tried. Escaped.
    """

    reader: str
    verdict: Verdict
    said: str = ""
    data_offset: int | None = None
    tensors: tuple[Seen, ...] = ()
    loads: bool | None = None
    not_loaded: str = ""

    @property
    def words(self) -> str:
        """The result in words, with the number of tensors, for a report."""
        if self.verdict != "accepted":
            return self.verdict + (f": {self.said}" if self.said else "")
        n = len(self.tensors)
        loading = {True: "accepted and loaded", False: "does not load"}
        what = loading[self.loads] if self.loads is not None else "accepted"
        only = f"header only: {self.not_loaded}" if self.loads is None and self.not_loaded else self.not_loaded
        said = "; ".join(filter(None, (only, self.said)))
        return f"{what}, {n:,} tensor{'' if n == 1 else 's'}" + (f": {said}" if said else "")


class Loading(NamedTuple):
    """The part of a model that llama.cpp should load, or the reason to load nothing."""

    load: Load
    why: str = ""


def to_load(model: Model) -> Loading:
    """Decide what llama.cpp can be expected to load: a model, or a vocabulary alone; but no adapter, projector or
    importance matrix, and no collection of tensors that does not declare itself a model."""
    kind = model.metadata.get("general.type")
    if kind is not None and kind != "model":
        return Loading("", f"general.type is {quoted(kind) if isinstance(kind, str) else 'no string'}, not model")
    named = {"general.architecture", "general.type", _TOKENIZER} & set(model.metadata)
    if not named and "token_embd.weight" not in model.tensors:
        return Loading("", "the file does not declare itself a model")
    if model.tensors:
        return Loading("model")
    return Loading("vocabulary") if _TOKENIZER in model.metadata else Loading("", "the file holds no tensors")


def with_loading(readings: Sequence[Reading], loading: Loading) -> tuple[Reading, ...]:
    """Add to the readings why llama.cpp did not load the file, if that was not tried."""
    return tuple(
        replace(r, not_loaded=loading.why) if r.reader == LLAMA and loading.why and r.verdict == "accepted" else r
        for r in readings
    )


def stripped(shape: Iterable[int]) -> tuple[int, ...]:
    """Remove a shape's trailing ones, which ggml adds up to four dimensions; () is a single value."""
    out = list(shape)
    while out and out[-1] == 1:
        out.pop()
    return tuple(out)


def compare(file: GgufFile, readings: Sequence[Reading], explained: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings where a reader's verdict or tensors differ from ours; none if all agree.

    Args:
        file: our own reading of the file, refused or not.
        readings: the other readers' readings of the same bytes.
        explained: our findings on the file. Those listed in `EXPLAIN` are reasons for a reader's refusal.
    """
    found = [f for reading in readings for f in _beside(file, reading, explained)]
    if file.refused is not None:
        accepted = [reading for reading in readings if reading.verdict == "accepted"]
        for one, other in pairwise(accepted):
            found += _differing(file, one, other)
    return tuple(replace(f, part=file.part) for f in found)


def _beside(file: GgufFile, reading: Reading, explained: Sequence[Finding]) -> list[Finding]:
    """Compare our verdict with one reader's."""
    who, said = reading.reader, f": {reading.said}" if reading.said else ""
    refused = file.refused
    # The cause of our refusal is probably the cause of the reader's too; otherwise no place in the file is known.
    start, stop = (refused.start, refused.stop) if refused else (0, file.size)
    if reading.verdict == "stopped":
        return []  # nothing is known: see `not_compared`
    if reading.verdict == "broke":
        return [finding("reader-broke", start, stop, f"{who} to accept or refuse the file", f"{who} {reading.said}")]
    if refused is not None:
        if reading.verdict == "refused":
            return []
        note = f"{who} accepts it with {_count(reading)}" + (f" ({reading.said})" if reading.said else "")
        return [finding("reader-verdict", start, stop, f"{who} to refuse the file for {refused.id}", note)]
    if reading.verdict == "accepted":
        return _differing(file, ours(file), reading) + _not_loaded(file, reading)
    expected, found = f"a file that {who} reads", f"{who} refuses it{said}"
    reasons = [f for f in explained if f.id.split("-", 2)[-1] in EXPLAIN.get(who, ()) and f.part == file.part]
    if reasons:
        at = reasons[0]
        return [finding("reader-verdict", at.start, at.stop, expected, f"{found}; {at.id} explains it")]
    return [finding("llama-refuses" if who == "llama.cpp" else "gguf-py-refuses", start, stop, expected, found)]


def _not_loaded(file: GgufFile, reading: Reading) -> list[Finding]:
    """Return a finding if llama.cpp does not load the file as a model."""
    if reading.loads is not False:
        return []
    unknown = for_another_program(reading.not_loaded)
    at = file.value_ranges.get("general.architecture") if unknown else None
    start, stop = (at.start, at.stop) if at else (0, file.size)
    slug = "llama-architecture" if unknown else "llama-refuses"
    said = reading.not_loaded
    found = said if said.startswith(LLAMA) else f"{LLAMA} says: {said}"
    return [finding(slug, start, stop, "a file that llama.cpp loads", found, at.owner if at else "")]


def not_compared(readings: Sequence[Reading]) -> list[tuple[str, str]]:
    """Return pairs of name and reason for comparisons that were skipped because a reader was stopped."""
    return [(f"{r.reader}'s view of the file", f"not compared: {r.said}") for r in readings if r.verdict == "stopped"]


def ours(file: GgufFile) -> Reading:
    """Return our own reading of a file that we accept, as a Reading of "gguf-verify"."""
    tensors = tuple(Seen(t.name, stripped(t.shape), t.type.type_id, t.offset, t.nbytes) for t in file.tensors.values())
    return Reading("gguf-verify", "accepted", "", file.data_offset, tensors)


def _differing(file: GgufFile, one: Reading, other: Reading) -> list[Finding]:
    """Return one finding for the first difference between two readings; none if they see the same tensors."""
    differing = [(i, a, b) for i, (a, b) in enumerate(zip_longest(one.tensors, other.tensors)) if a != b]
    a_start, b_start = one.data_offset or 0, other.data_offset or 0
    if one.tensors and other.tensors and a_start != b_start:
        start, stop = sorted(min(offset, file.size) for offset in (a_start, b_start))
        expected, found, owner = f"byte {a_start}", f"{other.reader} counts offsets from byte {b_start}", ""
    elif not differing:
        return []
    else:
        i, a, b = differing[0]
        more = f" (the first of {len(differing)} that differ)" if len(differing) > 1 else ""
        if a is None or b is None:
            field = len(Seen._fields) - 1
            expected, found = _count(one), f"{other.reader} sees {_count(other)}"
        else:
            field = next(k for k in range(len(a)) if a[k] != b[k])
            expected, found = _shown(a, field), f"{other.reader} sees {_shown(b, field)} in tensor {i}{more}"
        start, stop, owner = _place(file, i, field)
    return [finding("reader-differs", start, stop, f"{expected}, as {one.reader} sees", found, owner)]


def _count(reading: Reading) -> str:
    return f"{len(reading.tensors)} tensor" + "s" * (len(reading.tensors) != 1)


def _shown(seen: Seen, field: int) -> str:
    """Describe one field of a tensor, given its index in Seen."""
    kind = tensor_type(seen.type_id)
    return (
        f"the name {quoted(seen.name)}",
        f"the shape {' x '.join(map(str, seen.shape)) or '1'}",
        f"type {kind.name if kind else seen.type_id}",
        f"data at byte {seen.offset}",
        f"{seen.nbytes} bytes of data",
    )[field]


def _place(file: GgufFile, index: int, field: int) -> tuple[int, int, str]:
    """Return start, end and owner of a field of a tensor's description in our parse. The size maps to all of it."""
    tensors = list(file.tensors.values())
    if index < len(tensors):
        described = tensors[index].described
        first, last = (described[field], described[field]) if field < len(described) else (described[0], described[-1])
        return first.start, last.stop, tensors[index].name
    if file.refused is not None:
        return file.refused.start, file.refused.stop, file.refused.owner
    count = next(r for r in file.byte_map if r.kind == "tensor count")
    return count.start, count.stop, ""
