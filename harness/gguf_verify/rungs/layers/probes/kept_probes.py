"""Probes that failed in an earlier run of the same source, kept in this user's cache.

A search may find other data for another seed. A fault that one run found is found again by every later run here that
has the same files, definition, type of weights and version of the plan. Entries are data: what does not fit is ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from ....formats.tensor_types import WeightFormat
from ....support.cache import kept, taken
from ....support.text import printable
from ...plan import PLAN, Blocks, Probe, Values
from ...run import Run
from .call_counts import MOST

_SUFFIX, _KEPT = ".probes", ", kept from an earlier run"
#: Probes of one source and type of weights; pairs of blocks of a probe.
_MOST, _MOST_PAIRS = 16, 16


class _Kept(msgspec.Struct):
    """A probe. `data`: hexadecimal blocks of weights and of activations."""

    m: int
    n: int
    k: int
    blocks: Blocks
    values: Values
    because: str
    data: list[tuple[str, str]]
    first: int
    calls: int


def kept_probes(run: Run, fmt: WeightFormat, unit: int) -> list[Probe]:
    """Those of a kernel and a type of weights, the oldest first. `unit`: K is a multiple of this."""
    found, domain = [], run.kernel.domain
    for one in _entries(run, fmt):
        possible = one.m in domain.m and one.n in domain.n and one.k in domain.k and not one.k % unit
        if not possible or len(one.data) > _MOST_PAIRS or not 1 <= one.calls <= MOST or one.first < 0:
            continue
        try:
            data = tuple((bytes.fromhex(weights), bytes.fromhex(x)) for weights, x in one.data)
        except ValueError:
            continue
        width = run.semantics(fmt).encoding.row_bytes(one.k)
        if all(len(weights) == fmt.block_bytes and x and width % len(x) == 0 for weights, x in data):
            because = f"{printable(one.because, 300)}{_KEPT}"
            probe = Probe((one.m,), one.n, one.k, one.blocks, one.values, because=because)
            found.append(replace(probe, first=one.first, data=data, calls=one.calls))
    return found


def is_same(probe: Probe, other: Probe) -> bool:
    """Whether two probes make the same calls."""
    return replace(probe, because="") == replace(other, because="")


def keep_probes(run: Run, fmt: WeightFormat, failed: Iterable[Probe]) -> None:
    """Keep probes beside those of earlier runs; of more than a few, the oldest."""
    entries = _entries(run, fmt)
    for probe in failed:
        data = [(weights.hex(), x.hex()) for weights, x in probe.data]
        if probe.because.endswith(_KEPT) or len(data) > _MOST_PAIRS:
            continue
        of = (probe.tokens[0], probe.n, probe.k, probe.blocks, probe.values)
        one = _Kept(*of, probe.because, data, probe.first, probe.calls)
        if one not in entries and len(entries) < _MOST:
            entries.append(one)
    kept(_key(run, fmt), _SUFFIX, msgspec.json.encode(entries))


def _entries(run: Run, fmt: WeightFormat) -> list[_Kept]:
    content = taken(_key(run, fmt), _SUFFIX)
    try:
        return [] if content is None else msgspec.json.decode(content, type=list[_Kept])[:_MOST]
    except msgspec.MsgspecError:
        return []


def _key(run: Run, fmt: WeightFormat) -> list[str]:
    """The bytes of the source, and what else decides which probes fit."""
    source = hashlib.sha256(json.dumps(sorted(run.kernel.texts.items())).encode()).hexdigest()
    return ["probes", str(PLAN), source, run.kernel.semantics, fmt.name, run.kernel.domain.words]
