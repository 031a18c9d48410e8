"""The catalogue's faults as edits of the shipped sources: what a wrong kernel does, not what the catalogue predicts.

Each edit replaces text in a copy of `kernels/`; a text that is no longer there is an error. The kernels run on the CPU
host on real weights and activations.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...formats import FORMATS
from ...support.paths import kernel_root

NAIVE, F32, TILED = "gemm/q8_1/01_naive.cu", "gemm/f32/01_naive.cu", "gemm/q8_1/02_tiled.cu"
COMMON, QUANTIZE, QUANTIZER = "common.cuh", "quantize/q8_1.cuh", "quantize/q8_1.cu"
OFFSET, MINIMA, HALF_MINIMA = ("Q4_0", "Q5_0"), ("Q4_1", "Q5_1"), ("Q2_K", "Q4_K", "Q5_K")
MEET_SUM = OFFSET + MINIMA
ALL = tuple(FORMATS)
#: One of each family, for edits that no format has a part in.
SOME = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_NL", "IQ3_S", "TQ2_0", "MXFP4")

#: Faults of the catalogue that are no edit of a source, with the reason.
NO_EDIT = {
    "sum-overflows": "needs sums above 65504, which no activations of the fixtures have; and s, a half, in a kernel of "
    "a definition without one",
}


@dataclass(frozen=True)
class Edit:
    """One edit.

    Args:
        fault: the catalogue's id, "" where the catalogue must not know it.
        what: in words, unique.
        formats: of the weights.
        kernel: which is run.
        changes: (file, text, new text); {F} in a file's name is the format's, in small letters.
    """

    fault: str
    what: str
    formats: tuple[str, ...]
    kernel: str
    changes: tuple[tuple[str, str, str], ...]


FILE = "formats/{F}.cuh"
_LOW, _HIGH = "q[j] = qs[j] & 0x0F;", "q[j + 16] = qs[j] >> 4;"
_LOW5, _HIGH5 = (
    "q[j] = (qs[j] & 0x0F) | (high >> j & 1) << 4;",
    "q[j + 16] = (qs[j] >> 4) | (high >> (j + 16) & 1) << 4;",
)
_TERM = "accumulate(acc, wb[b], s, half_to_float(xb->d), half_to_float(xb->s), sum, codes)"
_BF16 = "__uint_as_float((__float_as_uint({v}) + 0x7FFFu + (__float_as_uint({v}) >> 16 & 1)) & 0xFFFF0000u)"
_HALF = "half_to_float(float_to_half({v}))"
_FLUSH = "(fabsf({v}) < 0x1p-14f ? 0.0f : {v})"


def _of_codes(fault: str, what: str, low: str, high: str, low5: str, high5: str) -> Iterator[Edit]:
    """An edit of `unpack`, of formats with codes of four bits and of five."""
    for formats, pairs in ((("Q4_0", "Q4_1"), ((_LOW, low), (_HIGH, high))),
                           (("Q5_0", "Q5_1"), ((_LOW5, low5), (_HIGH5, high5)))):  # fmt: skip
        yield Edit(fault, what, formats, "q8_1_naive", tuple((FILE, a, b) for a, b in pairs))


def _edits() -> Iterator[Edit]:
    def naive(fault: str, what: str, old: str, new: str, formats: tuple[str, ...] = SOME) -> Edit:
        return Edit(fault, what, formats, "q8_1_naive", ((NAIVE, old, new),))

    def f32(fault: str, what: str, old: str, new: str, formats: tuple[str, ...] = SOME) -> Edit:
        return Edit(fault, what, formats, "f32_naive", ((F32, old, new),))

    def of(fault: str, what: str, formats: tuple[str, ...], *pairs: tuple[str, str], by: str = "q8_1_naive") -> Edit:
        return Edit(fault, what, formats, by, tuple((FILE, a, b) for a, b in pairs))

    # offsets, minima and sums
    yield of("offset-twice", "8 taken off the low nibbles", ("Q4_0",), (_LOW, "q[j] = (qs[j] & 0x0F) - 8;"))
    yield of("offset-twice", "8 taken off the codes", ("Q4_0",),
             (_LOW, "q[j] = (qs[j] & 0x0F) - 8;"), (_HIGH, "q[j + 16] = (qs[j] >> 4) - 8;"))  # fmt: skip
    yield of("offset-twice", "16 taken off the codes", ("Q5_0",),
             (_LOW5, "q[j] = ((qs[j] & 0x0F) | (high >> j & 1) << 4) - 16;"),
             (_HIGH5, "q[j + 16] = ((qs[j] >> 4) | (high >> (j + 16) & 1) << 4) - 16;"))  # fmt: skip
    yield Edit(
        "offset-twice",
        "twice through the sum",
        OFFSET,
        "q8_1_naive",
        ((COMMON, "-F::ZERO, s_a", "-2.0f * F::ZERO, s_a"),),
    )
    yield of(
        "offset-twice", "twice from decoded codes", ("Q4_0",), ("(float)(q - 8)", "(float)(q - 16)"), by="f32_naive"
    )
    yield of("offset-twice", "zero point twice", ("Q6_K",), ("<< 4) - 32;", "<< 4) - 64;"))
    yield of("offset-twice", "zero point twice", ("TQ2_0",), ("& 3) - 1;", "& 3) - 2;"))
    yield of("offset-missing", "no offset", OFFSET, ("Minimum::OFFSET", "Minimum::NONE"))
    yield of("offset-missing", "no offset in decoded codes", ("Q4_0",), ("(float)(q - 8)", "(float)q"), by="f32_naive")
    yield of("offset-missing", "no zero point", ("Q6_K",), ("<< 4) - 32;", "<< 4);"))
    yield of("offset-missing", "no zero point", ("TQ2_0",), ("& 3) - 1;", "& 3);"))
    yield of("minimum-missing", "no minimum", MINIMA, ("Minimum::MEETS_S", "Minimum::NONE"))
    yield of("minimum-missing", "no minimum", HALF_MINIMA, ("Minimum::MEETS_CODES", "Minimum::NONE"))
    decode = ("return __fadd_rn(__fmul_rn((float)q, d), m);", "return __fmul_rn((float)q, d);")
    yield of("minimum-missing", "no minimum in decoded values", (*MINIMA, *HALF_MINIMA), decode, by="f32_naive")
    yield of(
        "minimum-sign",
        "the minimum subtracted",
        MINIMA,
        ("minimum(int, int) const { return ", "minimum(int, int) const { return -"),
    )
    yield of(
        "minimum-sign",
        "the minimum added",
        HALF_MINIMA,
        ("return -__fmul_rn(half_to_float(dmin)", "return __fmul_rn(half_to_float(dmin)"),
    )
    yield of("sum-of-codes", "the minimum meets the codes", MINIMA, ("Minimum::MEETS_S", "Minimum::MEETS_CODES"))
    total = "[&] { int t = 0; for (int k = 0; k < QK; ++k) t += xb->qs[k]; return (float)t; }()"
    yield naive(
        "sum-of-codes", "d times the sum of codes", "half_to_float(xb->s)", f"half_to_float(xb->d) * {total}", MEET_SUM
    )
    yield naive("sum-of-codes", "the sum of codes", "half_to_float(xb->s)", total, MEET_SUM)
    yield naive(
        "scale-and-sum-exchanged",
        "d and s",
        "half_to_float(xb->d), half_to_float(xb->s)",
        "half_to_float(xb->s), half_to_float(xb->d)",
        MEET_SUM,
    )
    yield of(
        "scale-and-minimum-exchanged",
        "d and m",
        MINIMA,
        ("uint16_t d;\n    uint16_t m;", "uint16_t m;\n    uint16_t d;"),
    )

    # the order of codes
    order = "k / 2 + k % 2 * 16"
    yield naive("activations-interleaved", "codes interleaved", "q[k] * xb->qs[k]", f"q[k] * xb->qs[{order}]")
    yield naive(
        "activations-interleaved", "codes separated", "q[k] * xb->qs[k]", "q[k] * xb->qs[2 * (k % 16) + k / 16]"
    )
    yield f32("activations-interleaved", "values interleaved", "__fmaf_rn(xb[k]", f"__fmaf_rn(xb[{order}]")
    fifth, five = "fifth-bits-interleaved", ("Q5_0", "Q5_1")
    first, second = "(high >> j & 1)", "(high >> (j + 16) & 1)"
    yield of(fifth, "bits 2j and 2j + 1", five, (first, "(high >> 2 * j & 1)"), (second, "(high >> (2 * j + 1) & 1)"))
    yield of(fifth, "bit 2j", five, (first, "(high >> 2 * j & 1)"))
    yield of(fifth, "bit j for both", five, (second, "(high >> j & 1)"))
    yield of(fifth, "halves exchanged", five, (second, "(high >> j & 1U)"), (first, "(high >> (j + 16) & 1)"))
    yield of("fifth-bits-missing", "none", five, (first, "0"), (second, "0"))
    yield of("fifth-bits-missing", "none in the first half", five, (first, "0"))
    yield of("fifth-bits-missing", "none in the second half", five, (second, "0"))
    yield of("fifth-bits-missing", "none", ("Q5_K",), ("(qh[i] >> s & 1)", "0"))
    yield from _of_codes("nibbles-swapped", "exchanged", "q[j] = qs[j] >> 4;", "q[j + 16] = qs[j] & 0x0F;",
                         "q[j] = (qs[j] >> 4) | (high >> j & 1) << 4;",
                         "q[j + 16] = (qs[j] & 0x0F) | (high >> (j + 16) & 1) << 4;")  # fmt: skip
    yield of("nibbles-swapped", "exchanged", ("IQ4_NL",), ("q[j] = KVALUES[qs[j] & 15]", "q[j] = KVALUES[qs[j] >> 4 ]"),
             ("q[j + 16] = KVALUES[qs[j] >> 4]", "q[j + 16] = KVALUES[qs[j] & 15]"))  # fmt: skip
    yield of("nibbles-swapped", "exchanged", ("IQ4_XS",), ("q[j] = KVALUES[p[j] & 15]", "q[j] = KVALUES[p[j] >> 4 ]"),
             ("q[j + 16] = KVALUES[p[j] >> 4]", "q[j + 16] = KVALUES[p[j] & 15]"))  # fmt: skip
    yield of("nibbles-swapped", "exchanged", ("MXFP4",), ("q[j] = e2m1(qs[j] & 15)", "q[j] = e2m1(qs[j] >> 4 )"),
             ("q[j + 16] = e2m1(qs[j] >> 4)", "q[j + 16] = e2m1(qs[j] & 15)"))  # fmt: skip
    yield of(
        "nibbles-swapped", "exchanged", ("Q4_K",), ("const int shift = s % 2 * 4;", "const int shift = 4 - s % 2 * 4;")
    )
    yield of(
        "nibbles-swapped",
        "exchanged",
        ("Q5_K",),
        ("(qs[s / 2 * 32 + i] >> s % 2 * 4 & 15)", "(qs[s / 2 * 32 + i] >> (4 - s % 2 * 4) & 15)"),
    )
    yield Edit("nibbles-swapped", "exchanged in words", ("Q4_0",), "q8_1_dp4a",
               ((FILE, "low = word & 0x0F0F0F0F", "high = word & 0x0F0F0F0F"),
                (FILE, "high = (word >> 4) & 0x0F0F0F0F", "low = (word >> 4) & 0x0F0F0F0F")))  # fmt: skip
    yield from _of_codes("nibbles-in-pairs", "neighbours", "q[2 * j] = qs[j] & 0x0F;", "q[2 * j + 1] = qs[j] >> 4;",
                         "q[2 * j] = (qs[j] & 0x0F) | (high >> 2 * j & 1) << 4;",
                         "q[2 * j + 1] = (qs[j] >> 4) | (high >> (2 * j + 1) & 1) << 4;")  # fmt: skip
    yield of(
        "nibbles-in-pairs",
        "neighbours",
        ("IQ4_NL",),
        ("q[j] = KVALUES", "q[2 * j] = KVALUES"),
        ("q[j + 16] = KVALUES", "q[2 * j + 1] = KVALUES"),
    )
    yield of(
        "nibbles-in-pairs",
        "neighbours",
        ("MXFP4",),
        ("q[j] = e2m1", "q[2 * j] = e2m1"),
        ("q[j + 16] = e2m1", "q[2 * j + 1] = e2m1"),
    )
    yield of(
        "nibbles-in-pairs",
        "neighbours",
        ("Q4_K",),
        ("q[i] = p[i] >> shift & 0x0F;", "q[i] = p[16 * (s % 2) + i / 2] >> i % 2 * 4 & 0x0F;"),
    )
    yield naive("signedness", "activations unsigned", "q[k] * xb->qs[k]", "q[k] * (uint8_t)xb->qs[k]")
    yield naive("signedness", "weights unsigned", "q[k] * xb->qs[k]", "(uint8_t)q[k] * xb->qs[k]", ("Q8_0",))
    yield naive(
        "signedness", "weights signed", "q[k] * xb->qs[k]", "((q[k] ^ 8) - 8) * xb->qs[k]", ("Q4_0", "Q4_1", "Q4_K")
    )
    yield naive(
        "signedness", "weights signed", "q[k] * xb->qs[k]", "((q[k] ^ 16) - 16) * xb->qs[k]", ("Q5_0", "Q5_1", "Q5_K")
    )

    # scales
    before, after = "wb[b ? b - 1 : b]", "wb[b + 1 < nb ? b + 1 : b]"
    for which, block in (("of the block before", before), ("of the next block", after)):
        yield naive("neighbouring-scale", which, "accumulate(acc, wb[b]", f"accumulate(acc, {block}")
    yield naive(
        "neighbouring-scale",
        "of activations before",
        "half_to_float(xb->d)",
        "half_to_float((b || s ? xb - 1 : xb)->d)",
    )
    yield naive(
        "neighbouring-scale",
        "of the next activations",
        "half_to_float(xb->d)",
        "half_to_float((b + 1 < nb || s + 1 < SLICES ? xb + 1 : xb)->d)",
    )
    yield naive("subnormals-flushed", "of activations", "half_to_float(xb->d)", _FLUSH.format(v="half_to_float(xb->d)"))
    yield of(
        "subnormals-flushed",
        "of weights",
        ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL"),
        (
            "scale(int, int) const { return half_to_float(d); }",
            "scale(int, int) const { return " + _FLUSH.format(v="half_to_float(d)") + "; }",
        ),
    )

    # the quantizer of activations
    rounding = "const float t = __fmul_rn(v[i], over_d);"
    for what, f in (
        ("toward zero", "truncf({v})"),
        ("downward", "floorf({v})"),
        ("half up, then toward zero", "truncf({v} + 0.5f)"),
    ):
        value = f.format(v="__fmul_rn(v[i], over_d)")
        yield Edit(
            "quantizer-truncates", what, SOME, "q8_1_naive", ((QUANTIZE, rounding, f"const float t = {value};"),)
        )
    d = "out.d = __fdiv_rn(amax, 127.0f);"
    yield Edit(
        "scale-rounding",
        "codes from the rounded scale",
        SOME,
        "q8_1_naive",
        ((QUANTIZE, d, "out.d = half_to_float(float_to_half(__fdiv_rn(amax, 127.0f)));"),),
    )
    yield Edit("scale-by-128", "codes to match", SOME, "q8_1_naive",
               ((QUANTIZE, d, "out.d = __fdiv_rn(amax, 128.0f);"),
                (QUANTIZE, "    return out;", "    for (float& q : out.q) q = fminf(q, 127.0f);\n    return out;")),
               )  # fmt: skip
    yield Edit(
        "scale-by-128",
        "codes as for max/127",
        SOME,
        "q8_1_naive",
        ((QUANTIZER, "float_to_half(block.d)", "float_to_half(block.d * 127.0f / 128.0f)"),),
    )

    # strides and tiles
    yield naive("row-stride", "rows a block shorter", "w + i % N * nb", "w + i % N * (nb - 1)")
    yield naive("row-stride", "rows a block longer", "w + i % N * nb", "w + i % N * (nb + 1)")
    yield naive("row-stride", "every row is row 0", "w + i % N * nb", "w")
    yield f32("row-stride", "rows a block shorter", "w + i % N * nb", "w + i % N * (nb - 1)")
    yield naive("row-stride", "activations a block shorter", "x + i / N * nb * SLICES", "x + i / N * (nb * SLICES - 1)")
    yield naive("row-stride", "every token is token 0", "x + i / N * nb * SLICES", "x")
    for name, size, padded in (("Q4_0", 18, 20), ("Q5_0", 22, 24), ("Q8_0", 34, 36), ("IQ4_NL", 18, 20)):
        changes = (
            (FILE, f"struct {name} {{", f"struct alignas(4) {name} {{"),
            (FILE, f"sizeof({name}) == {size}", f"sizeof({name}) == {padded}"),
            ("formats/format.cuh", "sizeof(FORMAT) == BLOCK_BYTES", "sizeof(FORMAT) > BLOCK_BYTES"),
        )
        yield Edit("block-stride", "a padded struct", (name,), "q8_1_naive", changes)
    for make in (naive, f32):
        yield make("transposed", "written transposed", "y[i] = acc", "y[i % N * M + i / N] = acc")
        yield make("end-of-k-dropped", "the last block", "b < nb; ++b", "b < nb - 1; ++b")
        yield make("half-accumulator", "at the end", "y[i] = acc", f"y[i] = {_HALF.format(v='acc')}")
        yield make("bfloat16-accumulator", "at the end", "y[i] = acc", f"y[i] = {_BF16.format(v='acc')}")
    yield naive("half-accumulator", "after each block", _TERM, _HALF.format(v=_TERM))
    yield naive(
        "half-accumulator", "before each block", f"acc = {_TERM}", f"acc = {_HALF.format(v='acc')}; acc = {_TERM}"
    )
    yield naive(
        "bfloat16-accumulator", "after each block", f"acc = {_TERM};", f"acc = {_TERM}; acc = {_BF16.format(v='acc')};"
    )
    last = "b && b == nb - 1"
    yield naive("stale-tile", "codes of weights", "wb[b].unpack(s, q)", f"wb[{last} ? b - 1 : b].unpack(s, q)")
    yield Edit(
        "stale-tile",
        "weights",
        SOME,
        "q8_1_naive",
        (
            (NAIVE, "wb[b].unpack(s, q)", f"wb[{last} ? b - 1 : b].unpack(s, q)"),
            (NAIVE, "accumulate(acc, wb[b]", f"accumulate(acc, wb[{last} ? b - 1 : b]"),
        ),
    )
    yield naive("stale-tile", "codes of activations", "q[k] * xb->qs[k]", f"q[k] * ({last} ? xb - SLICES : xb)->qs[k]")
    tiled = ("Q4_0", "Q5_1", "Q8_0", "Q4_K")
    yield Edit("stale-tile", "a tile of weights never loaded", tiled, "q8_1_tiled",
               ((TILED, "if (g < slices) {", "if (g < slices && (!first || first + STEP < slices)) {"),))  # fmt: skip
    yield Edit("end-of-k-dropped", "the last tile", tiled, "q8_1_tiled",
               ((TILED, "first < slices; first += STEP", "first + STEP < slices; first += STEP"),))  # fmt: skip

    # what the catalogue has not
    yield of("", "offset 7", ("Q4_0",), ("ZERO = 8.0f", "ZERO = 7.0f"))
    yield of("", "a shift by 3", ("Q4_0", "Q4_1"), ("qs[j] >> 4;", "(qs[j] >> 3) & 15;"))
    yield Edit(
        "",
        "one per cent",
        SOME,
        "q8_1_naive",
        (
            (COMMON, "float products,\n", "float products_,\n"),
            (
                COMMON,
                "    if constexpr (F::MINIMUM == Minimum::OFFSET) {",
                "    const float products = products_ * 1.01f;\n    if constexpr (F::MINIMUM == Minimum::OFFSET) {",
            ),
        ),
    )
    yield naive("", "a value of 16 left out", "k < 16 * h + 16; ++k) sum", "k < 16 * h + 15; ++k) sum")
    yield naive("", "the first block left out", "int64_t b = 0; b < nb", "int64_t b = 1; b < nb")
    yield naive("", "activations reversed", "q[k] * xb->qs[k]", "q[k] * xb->qs[31 - k]")
    yield naive("", "scale of the first block", "accumulate(acc, wb[b]", "accumulate(acc, wb[0]")
    yield naive(
        "",
        "the next token's scale",
        "half_to_float(xb->d)",
        "half_to_float((i / N + 1 < M ? xb + nb * SLICES : xb)->d)",
    )
    yield Edit(
        "",
        "codes one too large",
        SOME,
        "q8_1_naive",
        ((QUANTIZE, rounding, "const float t = __fmul_rn(v[i], over_d) + (i == 3 ? 1.0f : 0.0f);"),),
    )
    yield Edit("", "scale by 126", SOME, "q8_1_naive", ((QUANTIZE, d, "out.d = __fdiv_rn(amax, 126.0f);"),))


EDITS: tuple[Edit, ...] = tuple(_edits())


def altered(folder: Path, edit: Edit, kind: str) -> Path:
    """A copy of the sources with the edit, for a format. Raises ValueError where they no longer hold its text."""
    root = folder / "kernels"
    shutil.copytree(kernel_root(), root)
    for file, old, new in edit.changes:
        path = root / file.replace("{F}", kind.lower())
        source = path.read_text()
        if old not in source:
            raise ValueError(f"{path.relative_to(root)} does not hold {old!r}, which {edit.fault or edit.what} alters")
        path.write_text(source.replace(old, new))
    return root


def chosen(formats: Sequence[str]) -> list[tuple[Edit, str]]:
    """Every edit and format of those."""
    return [(edit, kind) for edit in EDITS for kind in edit.formats if kind in formats]
