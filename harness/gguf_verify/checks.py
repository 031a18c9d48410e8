"""Classes of checks, and the state of each in a run: done, skipped, or done in part.

A verdict claims what was checked and no more. So a run accounts for every class of check in `CHECKS`: a class that
nothing recorded as done is reported as skipped. All reports, the headline of a verdict included, derive from this
account.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

_PRODUCTS = ("gemm", "experts")
_OTHERS = ("dequantize", "quantize", "repack")
#: A scope that is a limit of sizes, which the headline of a pass names first: "VERIFIED up to M = 65,535".
_LIMIT = re.compile(r"up to ([MNK]) = ([0-9,]+)")
#: The kind that a rung counts when it makes one call alone (`--only-call`).
ALONE = "calls made alone"
#: Kinds of launches in other orders of threads, launches of checked builds, and repeated products.
LAUNCHES, CHECKED, AGAIN = "launches in other orders", "launches of a checked build", "products made again"
#: The kind of outputs at further shapes.
OTHER_SHAPES = "outputs at other shapes"
#: The rung in which no kernel computes anything.
BYTES = "bytes"
#: The end of a kind that another kernel than the one under test computed.
BESIDE = " of kernels beside it"


@dataclass(frozen=True)
class CheckClass:
    """A class of checks.

    Args:
        id: stable; of a rung its name.
        title: in a report.
        counts: kinds of `RungResult.checked` that show that it was done. A kind of no class is refused.
        computes: the kernels that it is for.
        is_rung: it is a rung, which is done where its substance was checked; `counts` are then kinds of that rung.
        of_kernel: the kernel under test computes something in it.
    """

    id: str
    title: str
    counts: tuple[str, ...] = ()
    computes: tuple[str, ...] = (*_PRODUCTS, *_OTHERS)
    is_rung: bool = False
    of_kernel: bool = True


def _rung(name: str, title: str, *counts: str, computes: tuple[str, ...] = _PRODUCTS) -> CheckClass:
    return CheckClass(name, title, counts, computes, is_rung=True, of_kernel=name != BYTES)


#: Every class, in the order of reports. docs/extending.md says how to add one.
CHECKS: tuple[CheckClass, ...] = (
    _rung(BYTES, "file bytes", "bytes", "tensors", "blocks", "values", computes=(*_PRODUCTS, *_OTHERS)),
    _rung("blocks", "single blocks", "tensors", "blocks"),
    _rung("layers", "the model's products", "GEMMs", "outputs"),
    _rung("tokens", "predicted tokens", "tokens", "embeddings", "GEMMs grafted"),
    _rung("values", "dequantized values", "tensors", "values", "values of probes", computes=("dequantize",)),
    _rung("codes", "quantized codes", "codes", "blocks", "blocks of probes", computes=("quantize",)),
    _rung("packing", "repacked blocks", "tensors", "blocks", computes=("repack",)),
    CheckClass("tensors", "every tensor", of_kernel=False),
    CheckClass("every-output", "every output, one by one", computes=_PRODUCTS),
    CheckClass("llama", "llama.cpp's own products", computes=_PRODUCTS, of_kernel=False),
    CheckClass("shapes", "other shapes", (OTHER_SHAPES,)),
    CheckClass("indices", "indices past 2^31"),
    CheckClass("grids", "launch limits", computes=_PRODUCTS),
    CheckClass("schedules", "other orders of threads", (LAUNCHES,)),
    CheckClass("walls", "reads outside of operands"),
    CheckClass("races", "races (checked build)", (CHECKED,)),
    CheckClass("alignment", "misaligned accesses"),
    CheckClass("code", "all of the kernel's code"),
    CheckClass("again", "products made again", (AGAIN,), _PRODUCTS),
    CheckClass("sandbox", "confinement of untrusted processes", of_kernel=False),
)
BY_ID: dict[str, CheckClass] = {c.id: c for c in CHECKS}
_KINDS = frozenset({ALONE}.union(*(c.counts for c in CHECKS)))


class Skipped(msgspec.Struct, frozen=True):
    """A class of checks, or a part of one, that was not done.

    Args:
        check: the id of the class.
        why: in a report.
        scope: how the headline of a pass names this, where the user chose it, such as "brief"; "" where the machine,
            the kernel or the model leaves no choice.
    """

    check: str
    why: str
    scope: str = ""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a class of checks in a run.

    Args:
        id, title: of the class.
        done: how many things of it were checked; where these are not counted, 1.
        skipped: why it, or a part of it, was not done; empty where it was done whole.
    """

    id: str
    title: str
    done: int
    skipped: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The title, and why it was skipped or done in part only."""
        part = " (in part)" if self.done and self.skipped else ""
        return f"{self.title}{part}: {'; '.join(self.skipped)}" if self.skipped else self.title


def check_kind(kind: str, substance: Collection[str]) -> None:
    """That a kind of thing which a rung counts belongs to a class of checks, or is the rung's substance. Raises
    ValueError."""
    kind = kind.removesuffix(BESIDE)
    if kind not in _KINDS and kind not in substance:
        raise ValueError(f"{kind!r} belongs to no class of checks: add it to gguf_verify.checks.CHECKS")


def account(computes: str, done: Mapping[str, int], skipped: Iterable[Skipped], ran: Mapping[str, str]) -> list[Check]:
    """The state of each class that is for such a kernel.

    Args:
        done: id → how many things were checked; 0 where a run has nothing of the class.
        skipped: what was recorded.
        ran: rungs that were climbed → their questions, which are the titles of those without a class of their own.
    """
    reasons: dict[str, dict[str, None]] = {}
    for each in skipped:
        reasons.setdefault(each.check, {})[each.why] = None
    found = []
    for c in (c for c in CHECKS if computes in c.computes):
        why, n = tuple(reasons.get(c.id, ())), done.get(c.id, 0)
        if not n and not why:
            if c.id in done:
                continue
            main = next(r.id for r in reversed(CHECKS) if r.is_rung and computes in r.computes and r.id != "tokens")
            rung = c.id if c.is_rung else main
            why = (
                "nothing of it was checked" if rung in ran else "not run" if c.is_rung else f"it needs the {rung} rung",
            )
        found.append(Check(id=c.id, title=c.title, done=n, skipped=why))
    found += [Check(id=name, title=title, done=done[name]) for name, title in ran.items() if name not in BY_ID]
    return found


def scope_of(checks: Iterable[Check], scopes: Iterable[str], missing: Collection[str] = ()) -> str:
    """The words after "verified" in the headline of a pass that claims less than a whole run; "" for a whole one.

    Args:
        scopes: of what was skipped, see `Skipped.scope`.
        missing: rungs that are no part of a whole run here.
    """
    rungs = [c for c in checks if c.id not in BY_ID or BY_ID[c.id].is_rung]
    done = [c.title for c in rungs if c.done]
    whole = all(c.done or c.id in missing for c in rungs)
    words = "" if whole or not done else f": {_listed(done)} only"
    said = list(dict.fromkeys(s for s in scopes if s))
    limits: dict[str, int] = {}
    for name, most in (found.groups() for s in said if (found := _LIMIT.fullmatch(s))):
        limits[name] = min(int(most.replace(",", "")), limits.get(name, sys.maxsize))
    said = [s for s in said if not _LIMIT.fullmatch(s)]
    up_to = " and ".join(f"{name} = {most:,}" for name, most in limits.items())
    return (f" up to {up_to}" if up_to else "") + words + (f" ({'; '.join(said)})" if said else "")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
