"""Identification of the definition that gave some outputs: the one whose bound holds for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.c_arithmetic import round_half_away
from ..formats.element import ElementFormat
from ..formats.llama_products import MMVQ_TOKENS
from ..formats.tensor_types import WeightFormat
from ..semantics.accumulation import BY_VALUE, IN_FLOAT32, accumulation_of
from ..semantics.cuda import NoDefinition, llama_cuda_semantics
from ..semantics.declared import DECLARABLE, composed, declaration
from ..semantics.definition import Semantics
from ..semantics.definitions import ENCODINGS, SEMANTICS, TERMS, llama_cpu_semantics
from ..semantics.definitions.f32 import F32
from ..semantics.definitions.f32_apart import VALUES_APART
from ..semantics.elements import element_product
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.sums import Product

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Exact results with a smaller NMSE are the same definition on such data: rounding alone makes 1e-14.
COINCIDE = 1e-12
_QK, _SEED = 32, 5
#: The least fraction of outputs that are wrong if other roundings explain it.
_EVERYWHERE = 0.25
#: Tokens and rows on which composed definitions are tried first.
_FEW = 8
#: Separates the name of a definition from its accumulation.
_IN = ", added in "
#: Sums of fewer bits than float32's, by their declared names.
_NARROW_SUMS = ("tensor", "float16")


def called(semantics: Semantics, fmt: WeightFormat) -> str:
    """Return what kernel authors call a definition: MMQ's Q4_0, for example, or the CPU's Q4_0."""
    if semantics is F32:
        return f"{fmt.name} with float32 activations"
    if semantics.term is VALUES_APART and semantics.encoding is F32.encoding:
        return f"{fmt.name} with float32 activations and the offset or minimum multiplied by their sum"
    llama = fmt.llama
    known = (("MMVQ's", llama.mmvq), ("MMQ's", llama.mmq), ("the CPU's", llama.cpu))
    return next((f"{who} {fmt.name}" for who, name in known if name == semantics.name), fmt.name)


def identify_kernel(
    declared: Semantics,
    fmt: WeightFormat,
    rows: Bytes,
    x: Floats,
    y: Floats,
    threads: int = 1,
    own: Semantics | None = None,
) -> Identification:
    """Apply `identify`; if no definition fits with its own quantizer, also with the quantizer of the declared one.

    A kernel may get blocks and then compute another definition with them. A kernel that gets values of 16 bits computes
    with those.
    """
    if isinstance(fmt, BlockFormat) and not declared.encoding.quantizes:
        x = declared.values_of(declared.bytes_of(x))
    meant = declared if own is None and isinstance(fmt, BlockFormat) and not declared.plain else own
    found = identify(fmt, rows, x, y, threads, own=meant, pairs=False)
    if found.names or not isinstance(fmt, BlockFormat):
        return found
    if declared.activations is not None:
        taken = declared.bytes_of(x)
        fitting = [s for s in _every(fmt) if s.activations is declared.activations]
        handed = identify(fmt, rows, x, y, threads, {s.name: taken for s in fitting}, meant, pairs=False)
        if handed.names:
            return handed
    return identify(fmt, rows, x, y, threads, own=meant)


def advice(declared: Semantics, names: Sequence[str], fmt: WeightFormat) -> str:
    """Return advice for the author of a kernel that computes other definitions (the nearest first) than declared."""
    names = nearest_of(declared, names) or names
    known = [definition_named(name) for name in names]
    if _but_for_sums(declared, names[0]):
        meant, sums = declared.accumulation, known[0].accumulation
        said = declaration(replace(declared, accumulation=sums))
        return f"adds sums in {sums}, not in {meant} as declared: add them in {meant}, or declare {said}"
    which = " or ".join(f"{called(s, fmt)} ({s.name})" for s in known)
    first = replace(known[0], name=known[0].name.partition(_IN)[0])
    said = (
        first.name
        if first.name in SEMANTICS and first.plain and declared.plain
        else declaration(_rounded_as(declared, first))
    )
    source = first.source.split(" (")[0]
    compared = "" if source == "a declaration" else f", or compare it with {source}"
    return (
        f"computes {which}, not {called(declared, fmt)} ({declared.name}) as declared: the kernel is correct for that "
        f"definition; declare {said}{compared}"
    )


def value_by_value(semantics: Semantics) -> Semantics | None:
    """Return the definition of kernels that add each product of two values by itself, instead of a block's integer sum.

    None if that is no different definition.
    """
    if not semantics.encoding.quantizes or semantics.accumulation is not IN_FLOAT32 or semantics.oracle is not None:
        return None
    return replace(semantics, name=f"{semantics.name}{_IN}{BY_VALUE.name}", accumulation=BY_VALUE)


def _but_for_sums(declared: Semantics, name: str) -> bool:
    """Return whether that definition only differs from the declared one by sums of fewer bits."""
    return name in {f"{declared.name}{_IN}{sums}" for sums in _NARROW_SUMS}


def nearest_of(declared: Semantics, names: Sequence[str]) -> tuple[str, ...]:
    """Return the definitions of `names` other than the declared one.

    If one differs from it only in its sums, it stands for all: compared with the rounding of sums to 16 bits, other
    roundings are invisible.
    """
    others = tuple(name for name in names if name != declared.name)
    return next(((name,) for name in others if _but_for_sums(declared, name)), others)


def definition_named(name: str) -> Semantics:
    """Return the definition that an `Identification` names. Raises KeyError."""
    whole, _, sums = name.partition(_IN)
    known = DECLARABLE.get(whole) or SEMANTICS.get(whole)
    if known is None:
        encoding, _, term = whole.partition(" × ")
        known = composed(ENCODINGS[encoding], TERMS[term])
    return replace(known, name=name, accumulation=accumulation_of(sums)) if sums else known


def composed_definitions(fmt: WeightFormat) -> list[Semantics]:
    """Return every encoding with every term that has a definition for such weights, besides `definitions` and `wider`.

    Of those with the same exact product and bound it returns one, a named one if there is any.
    """
    if isinstance(fmt, ElementFormat):
        return []
    found: dict[tuple[str, Hashable], Semantics] = {}
    first = [*definitions(fmt), *wider(fmt)]
    for semantics in sorted(_every(fmt), key=lambda s: (s not in first, s.name not in DECLARABLE, s.name)):
        encoding = semantics.encoding
        plain = encoding if encoding.rearranges is None else encoding.rearranges[0]
        found.setdefault((plain.name, semantics.term.alike(fmt)), semantics)
    return [semantics for semantics in found.values() if semantics not in first]


def _every(fmt: BlockFormat) -> Iterator[Semantics]:
    for encoding in ENCODINGS.values():
        for term in TERMS.values():
            if encoding.quantizes != term.of_values:
                semantics = composed(encoding, term)
                try:
                    semantics.uses_sum(fmt)
                except ValueError:
                    continue
                yield semantics


def _rounded_as(declared: Semantics | None, semantics: Semantics) -> Semantics:
    """Return a definition, with sums and outputs rounded as a kernel declares, and its declared epilogue."""
    if declared is None or declared.plain:
        return semantics
    sums = declared.accumulation
    if semantics.accumulation is not IN_FLOAT32 or (sums.name == "tensor" and not _of_16_bits(semantics)):
        sums = semantics.accumulation
    return replace(semantics, accumulation=sums, output=declared.output, epilogue=declared.epilogue)


def _of_16_bit_kernels(own: Semantics, plain: Sequence[Semantics], pairs: Sequence[Semantics]) -> list[list[Semantics]]:
    """Return definitions that only kernels with some declared 16-bit type, besides Q8_1's halves, may compute.

    Ordered by the width of their bound: sums in tensor cores, in half, and weights decoded in steps of a declared type.
    """
    inner = own.inside or own
    types = {own.encoding.dtype, inner.encoding.dtype, inner.term.weights, own.output} & {"float16", "bfloat16"}
    if not types and inner.accumulation is IN_FLOAT32:
        return []
    found = []
    if inner.accumulation is IN_FLOAT32:
        for sums in _NARROW_SUMS:
            may = [s for s in plain if s.inside is None and (sums != "tensor" or _of_16_bits(s))]
            found.append([replace(s, name=f"{s.name}{_IN}{sums}", accumulation=accumulation_of(sums)) for s in may])
    found.append([s for s in pairs if s.term.wide and s.term.weights in types and s.encoding is inner.encoding])
    return found


def _of_16_bits(semantics: Semantics) -> bool:
    narrow = ("float16", "bfloat16")
    return semantics.encoding.dtype in narrow and semantics.term.weights in narrow


def definitions(fmt: WeightFormat) -> list[Semantics]:
    """Return the definitions of a product with such weights: those of this project's kernels and of llama.cpp.

    No two have the same exact product. Weights that are not quantized have one of their type, and that of activations
    that are not rounded.
    """
    if isinstance(fmt, ElementFormat):
        return list(dict.fromkeys((F32, llama_cpu_semantics(fmt))))
    found = [s for s in SEMANTICS.values() if s.any_format and s.term is not VALUES_APART]
    for m in (1, MMVQ_TOKENS + 1):
        try:
            found.append(llama_cuda_semantics(fmt, m))
        except NoDefinition:
            continue
    return list(dict.fromkeys([*found, llama_cpu_semantics(fmt)]))


def wider(fmt: WeightFormat) -> list[Semantics]:
    """Return definitions of the exact product of `f32` with a wider bound."""
    return [] if isinstance(fmt, ElementFormat) else [s for s in SEMANTICS.values() if s.term is VALUES_APART]


def expected(
    semantics: Semantics, fmt: WeightFormat, rows: Bytes, x: Floats, threads: int = 1, taken: Bytes | None = None
) -> Product:
    """Return the product of weights uint8[N, row bytes] and activations float32[M, K] by a definition.

    Args:
        taken: the activations as quantized for such a product, uint8[M, row bytes], if known: its quantizer may be
            built with approximate division, which changes the code of some x.
    """
    if isinstance(fmt, ElementFormat):
        if semantics is F32:
            return element_product("F32", fmt.decode(rows).view(np.uint8), x, threads=threads)
        return element_product(fmt.name, rows, x, threads=threads)
    return product(semantics, fmt, rows, semantics.bytes_of(x) if taken is None else taken, threads=threads)


def known_inputs(m: int, k: int, seed: int = _SEED) -> Floats:
    """Return activations float32[M, K] on which all definitions differ.

    The values are normally distributed, and their scales are not halves. Of every four blocks of 32, one lies on ties:
    its largest magnitude is 127 times a power of two and the others are odd halves of that, which rounding to even and
    rounding away from zero round differently; another lies where x/d and x·(127/max), in float32, are rounded to
    different codes.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)).astype(np.float32)
    blocks = x[:, : k // _QK * _QK].reshape(m, -1, _QK)
    ties = blocks[:, ::4]
    ties[:] = (rng.integers(-126, 126, ties.shape) + 0.5) / 64
    ties[..., 0] = 127 / 64
    apart = blocks[:, 1::4]
    largest = np.abs(apart).max(axis=-1, keepdims=True) * np.float32(1.01)
    d, inverse = largest / np.float32(127), np.float32(127) / largest
    near = (rng.integers(-126, 126, apart.shape) + 0.5).astype(np.float32) * d
    for step in range(-3, 4):
        moved = (near.view(np.int32) + step).view(np.float32)
        differs = round_half_away(moved / d) != round_half_away(moved * inverse)
        apart[differs] = moved[differs]
    apart[..., :1] = largest
    x[:, : k // _QK * _QK] = blocks.reshape(m, -1)
    return x


@dataclass(frozen=True)
class Candidate:
    """The comparison of outputs with one definition.

    Args:
        name: of the definition.
        utilisation: |y - o| / bound of the worst output; infinite for NaN.
        score: |y - o| / spread of the worst output.
        nmse: Σ(y - o)² / Σ o².
        within: whether every output passes the gates of `semantics.judge`.
    """

    name: str
    utilisation: float
    score: float
    nmse: float
    within: bool


@dataclass(frozen=True)
class Identification:
    """All definitions, the nearest first.

    Args:
        candidates: every definition of the format; those within their bound come first, then by NMSE.
        outputs: the number of outputs that were judged.
        coincide: whether the named ones differ by less than COINCIDE from each other.
    """

    candidates: tuple[Candidate, ...]
    outputs: int
    coincide: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The definitions whose bound holds for all outputs."""
        return tuple(c.name for c in self.candidates if c.within)

    @property
    def next(self) -> Candidate | None:
        """The nearest definition that is not named."""
        return next((c for c in self.candidates if not c.within), None)

    @property
    def words(self) -> str:
        """The answer in a phrase."""
        if not self.names:
            return "none of the known definitions"
        if len(self.names) > 1:
            return " or ".join(self.names) + (" (the same on these data)" if self.coincide else "")
        return self.names[0]


def identify(
    fmt: WeightFormat,
    rows: Bytes,
    x: Floats,
    y: Floats,
    threads: int = 1,
    taken: Mapping[str, Bytes] | None = None,
    own: Semantics | None = None,
    pairs: bool = True,
) -> Identification:
    """Return the definitions that gave y.

    Args:
        rows: weights uint8[N, row bytes].
        x: activations float32[M, K].
        y: outputs float32[M, N].
        threads: for the exact products.
        taken: definition → x as quantized for its products: see `expected`.
        own: the definition that a kernel declares, in addition to the known ones or in place of the one of its name.
            The known ones are tried with its sums, outputs and epilogue.
        pairs: whether to try other pairs of an encoding and a term, too.

    If no known definition fits, every other pair of an encoding and a term is tried. Sums in tensor cores and in half,
    and decoding in steps, are only tried for kernels with some declared 16-bit type many of whose outputs are wrong:
    their bounds admit any small fault, and their roundings affect all outputs.

    Raises ValueError for shapes that do not fit, or if there is nothing to judge; KernelFault if an author's oracle
    fails.
    """
    if y.shape != (len(x), len(rows)) or not y.size:
        raise ValueError(f"outputs of shape {y.shape} do not belong to {len(x)} tokens and {len(rows)} rows")
    if not isinstance(fmt, ElementFormat) and rows.shape[1] != fmt.row_bytes(x.shape[1]):
        raise ValueError(f"rows of {rows.shape[1]} bytes do not hold {x.shape[1]} values of {fmt.name}")
    y = np.ascontiguousarray(y, np.float32)
    found: list[tuple[Candidate, Product]] = []
    bad = 1.0  # fraction of the outputs that are wrong by the declared definition
    known = {s.name: s for s in [*definitions(fmt), *wider(fmt)]}
    if own is not None:
        known[own.name] = own

    def look(tried: Iterable[Semantics], screened: bool = False) -> None:
        nonlocal bad
        for semantics in tried:
            fits_f32 = any(c.within for c, _ in found if c.name == F32.name)
            if semantics.term is VALUES_APART and semantics is not own and fits_f32:
                continue  # the same exact product: outputs within the narrow bound are also within the wide one
            meant = semantics if semantics is own else _rounded_as(own, semantics)
            bytes_of = (taken or {}).get(semantics.name)
            if screened:
                few = None if bytes_of is None else bytes_of[:_FEW]
                p = expected(meant, fmt, rows[:_FEW], x[:_FEW], threads, few)
                if not judge(np.ascontiguousarray(y[:_FEW, :_FEW]), p).verified:
                    continue
            p = expected(meant, fmt, rows, x, threads, bytes_of)
            with np.errstate(all="ignore"):
                judgement = judge(y, p)
            if semantics is own:
                bad = float(judgement.bad.mean())
            # All zeros fit every definition, and a bound that admits zeros for most outputs is no evidence.
            said = bool(np.any(p.exact)) and judgement.verified
            name = semantics.name
            found.append((Candidate(name, judgement.utilisation, judgement.score, judgement.nmse, said), p))

    look(known.values())
    others = [s for s in composed_definitions(fmt) if s.name not in known] if pairs else []
    later = [[s for s in others if not s.term.wide]]
    declares = pairs and own is not None and own.oracle is None and isinstance(fmt, BlockFormat)
    if declares and own is not None and bad >= _EVERYWHERE:
        later += _of_16_bit_kernels(own, [*known.values(), *later[0]], others)
    for tried in later:
        if not any(c.within for c, _ in found):
            look(tried, screened=True)
    found.sort(key=lambda pair: (not pair[0].within, pair[0].nmse if np.isfinite(pair[0].nmse) else np.inf))
    within = [p for c, p in found if c.within]
    coincide = all(nmse(p.exact, within[0].exact) < COINCIDE for p in within[1:])
    return Identification(tuple(c for c, _ in found), y.size, coincide)


def nmse(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Return Σ(a - b)² / Σ b²; 0 if both are zero."""
    with np.errstate(all="ignore"):
        difference, energy = float(((a - b) ** 2).sum()), float((b**2).sum())
    return difference / energy if energy else (0.0 if difference == 0 else np.inf)
