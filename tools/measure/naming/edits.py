"""The catalogue's faults as edits of the shipped sources: outputs of incorrect kernels, not predictions.

Each edit replaces text in a copy of `kernels/`. It is an error if the text is no longer there. The kernels run on the
CPU host, on real weights and activations.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf_verify.support.paths import kernel_root

NAIVE, F32, TILED = "gemm/q8_1/01_naive.cu", "gemm/f32/01_naive.cu", "gemm/q8_1/02_tiled.cu"
COMMON, QUANTIZE, QUANTIZER = "common.cuh", "quantize/q8_1.cuh", "quantize/q8_1.cu"
OFFSET, MINIMA, HALF_MINIMA = ("Q4_0", "Q5_0"), ("Q4_1", "Q5_1"), ("Q2_K", "Q4_K", "Q5_K")
MEET_SUM = OFFSET + MINIMA
#: One format of each family, for edits outside the formats' headers.
SOME = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_NL", "IQ3_S", "TQ2_0", "MXFP4")

#: Faults of the catalogue for which there is no edit, with the reason.
NO_EDIT = {
    "sum-overflows": "It needs sums above 65504, which activations of the fixtures do not reach, and a kernel that "
    "stores s as a half although its definition does not.",
    "quantizer-ties": "It needs values midway between two codes, which are rare among the fixtures' activations.",
    "quantizer-reciprocal": "It needs values that are nearly midway between two codes, which are rare among the "
    "fixtures' activations.",
    "zero-block": "It needs blocks of zeros beside others, which the fixtures' activations do not have.",
    "least-code": "It needs codes of -128, which no quantizer of Q8_0 or of activations writes.",
    "values-paired-wrongly": "Of many orders of values, those that are in the sources are faults of their own: "
    "activations-interleaved, nibbles-swapped, nibbles-in-pairs.",
}


@dataclass(frozen=True)
class Edit:
    """One edit.

    Args:
        fault: the id of the fault, or "" if it is not in the catalogue.
        what: a description of the edit.
        formats: of the weights.
        kernel: the kernel that is run.
        changes: (file, text, new text); {F} in a file's name is the format's name in small letters.
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
_CODE, _SCALE = "const float t = __fmul_rn(v[i], over_d);", "out.d = __fdiv_rn(amax, 127.0f);"
_FLUSH = "(fabsf({v}) < 0x1p-14f ? 0.0f : {v})"


def _naive(fault: str, what: str, old: str, new: str, formats: tuple[str, ...] = SOME) -> Edit:
    return Edit(fault, what, formats, "q8_1_naive", ((NAIVE, old, new),))


def _f32(fault: str, what: str, old: str, new: str) -> Edit:
    return Edit(fault, what, SOME, "f32_naive", ((F32, old, new),))


def _format(fault: str, what: str, formats: tuple[str, ...], *pairs: tuple[str, str], by: str = "q8_1_naive") -> Edit:
    return Edit(fault, what, formats, by, tuple((FILE, old, new) for old, new in pairs))


def _edit(
    fault: str, what: str, *pairs: tuple[str, str], file: str = QUANTIZE, formats: tuple[str, ...] = SOME
) -> Edit:
    return Edit(fault, what, formats, "q8_1_naive", tuple((file, old, new) for old, new in pairs))


def _nibbles(
    fault: str, what: str, first: str, second: str, low: str, high: str, bit: tuple[str, str]
) -> Iterator[Edit]:
    """An edit of `unpack`, for formats with codes of four bits and of five: q[first] and q[second] get `low` and `high`
    nibbles, and the fifth bits `bit`."""
    yield _format(fault, what, ("Q4_0", "Q4_1"), (_LOW, f"q[{first}] = {low};"), (_HIGH, f"q[{second}] = {high};"))
    yield _format(
        fault, what, ("Q5_0", "Q5_1"),
        (_LOW5, f"q[{first}] = ({low}) | (high >> {bit[0]} & 1) << 4;"),
        (_HIGH5, f"q[{second}] = ({high}) | (high >> {bit[1]} & 1) << 4;"),
    )  # fmt: skip


# fmt: off
def _offsets_and_sums() -> Iterator[Edit]:
    eight, sixteen = "q[j] = (qs[j] & 0x0F) - 8;", "q[j] = ((qs[j] & 0x0F) | (high >> j & 1) << 4) - 16;"
    yield _format("offset-twice", "8 taken off the low nibbles", ("Q4_0",), (_LOW, eight))
    yield _format("offset-twice", "8 taken off the codes", ("Q4_0",),
                  (_LOW, eight), (_HIGH, "q[j + 16] = (qs[j] >> 4) - 8;"))
    yield _format("offset-twice", "16 taken off the codes", ("Q5_0",), (_LOW5, sixteen),
                  (_HIGH5, "q[j + 16] = ((qs[j] >> 4) | (high >> (j + 16) & 1) << 4) - 16;"))
    yield Edit("offset-twice", "twice through the sum", OFFSET, "q8_1_naive",
               ((COMMON, "-F::ZERO, s_a", "-2.0f * F::ZERO, s_a"),))
    decoded = "(float)(q - 8)"
    yield _format("offset-twice", "twice from decoded codes", ("Q4_0",), (decoded, "(float)(q - 16)"), by="f32_naive")
    yield _format("offset-twice", "zero point twice", ("Q6_K",), ("<< 4) - 32;", "<< 4) - 64;"))
    yield _format("offset-twice", "zero point twice", ("TQ2_0",), ("& 3) - 1;", "& 3) - 2;"))
    yield _format("offset-missing", "no offset", OFFSET, ("Minimum::OFFSET", "Minimum::NONE"))
    yield _format("offset-missing", "no offset in decoded codes", ("Q4_0",), (decoded, "(float)q"), by="f32_naive")
    yield _format("offset-missing", "no zero point", ("Q6_K",), ("<< 4) - 32;", "<< 4);"))
    yield _format("offset-missing", "no zero point", ("TQ2_0",), ("& 3) - 1;", "& 3);"))
    yield _format("minimum-missing", "no minimum", MINIMA, ("Minimum::MEETS_S", "Minimum::NONE"))
    yield _format("minimum-missing", "no minimum", HALF_MINIMA, ("Minimum::MEETS_CODES", "Minimum::NONE"))
    yield _format("minimum-missing", "no minimum in decoded values", (*MINIMA, *HALF_MINIMA),
                  ("return __fadd_rn(__fmul_rn((float)q, d), m);", "return __fmul_rn((float)q, d);"), by="f32_naive")
    signature = "minimum(int, int) const { return "
    yield _format("minimum-sign", "the minimum subtracted", MINIMA, (signature, signature + "-"))
    dmin = "return -__fmul_rn(half_to_float(dmin)"
    yield _format("minimum-sign", "the minimum added", HALF_MINIMA, (dmin, dmin.replace("-", "")))
    yield _format("sum-of-codes", "the minimum meets the codes", MINIMA, ("Minimum::MEETS_S", "Minimum::MEETS_CODES"))
    total = "[&] { int t = 0; for (int k = 0; k < QK; ++k) t += xb->qs[k]; return (float)t; }()"
    s, d = "half_to_float(xb->s)", "half_to_float(xb->d)"
    yield _naive("sum-of-codes", "d times the sum of codes", s, f"{d} * {total}", MEET_SUM)
    yield _naive("sum-of-codes", "the sum of codes", s, total, MEET_SUM)
    yield _naive("scale-and-sum-exchanged", "d and s", f"{d}, {s}", f"{s}, {d}", MEET_SUM)
    yield _format("scale-and-minimum-exchanged", "d and m", MINIMA,
                  ("uint16_t d;\n    uint16_t m;", "uint16_t m;\n    uint16_t d;"))


def _order_of_codes() -> Iterator[Edit]:
    order, product = "k / 2 + k % 2 * 16", "q[k] * xb->qs[k]"
    interleaved = "activations-interleaved"
    yield _naive(interleaved, "codes interleaved", product, f"q[k] * xb->qs[{order}]")
    yield _naive(interleaved, "codes separated", product, "q[k] * xb->qs[2 * (k % 16) + k / 16]")
    yield _f32(interleaved, "values interleaved", "__fmaf_rn(xb[k]", f"__fmaf_rn(xb[{order}]")
    fifth, five = "fifth-bits-interleaved", ("Q5_0", "Q5_1")
    first, second = "(high >> j & 1)", "(high >> (j + 16) & 1)"
    even = (first, "(high >> 2 * j & 1)")
    yield _format(fifth, "bits 2j and 2j + 1", five, even, (second, "(high >> (2 * j + 1) & 1)"))
    yield _format(fifth, "bit 2j", five, even)
    yield _format(fifth, "bit j for both", five, (second, first))
    yield _format(fifth, "halves exchanged", five, (second, "(high >> j & 1U)"), (first, second))
    yield _format("fifth-bits-missing", "none", five, (first, "0"), (second, "0"))
    yield _format("fifth-bits-missing", "none in the first half", five, (first, "0"))
    yield _format("fifth-bits-missing", "none in the second half", five, (second, "0"))
    yield _format("fifth-bits-missing", "none", ("Q5_K",), ("(qh[i] >> s & 1)", "0"))
    swapped, pairs = "nibbles-swapped", "nibbles-in-pairs"
    yield from _nibbles(swapped, "exchanged", "j", "j + 16", "qs[j] >> 4", "qs[j] & 0x0F", ("j", "(j + 16)"))
    for kind, of in (("IQ4_NL", "KVALUES[qs[j] {}]"), ("IQ4_XS", "KVALUES[p[j] {}]"), ("MXFP4", "e2m1(qs[j] {})")):
        low, high, wide = (of.format(shift) for shift in ("& 15", ">> 4", ">> 4 "))
        yield _format(swapped, "exchanged", (kind,), (f"q[j] = {low}", f"q[j] = {wide}"),
                      (f"q[j + 16] = {high}", f"q[j + 16] = {low}"))
    yield _format(swapped, "exchanged", ("Q4_K",), ("const int shift = s % 2 * 4;", "const int shift = 4 - s % 2 * 4;"))
    yield _format(swapped, "exchanged", ("Q5_K",),
                  ("(qs[s / 2 * 32 + i] >> s % 2 * 4 & 15)", "(qs[s / 2 * 32 + i] >> (4 - s % 2 * 4) & 15)"))
    yield _format(swapped, "exchanged in words", ("Q4_0",), ("low = word & 0x0F0F0F0F", "high = word & 0x0F0F0F0F"),
                  ("high = (word >> 4) & 0x0F0F0F0F", "low = (word >> 4) & 0x0F0F0F0F"), by="q8_1_dp4a")
    yield from _nibbles(pairs, "neighbours", "2 * j", "2 * j + 1", "qs[j] & 0x0F", "qs[j] >> 4",
                        ("2 * j", "(2 * j + 1)"))
    for kind, of in (("IQ4_NL", "KVALUES"), ("MXFP4", "e2m1")):
        yield _format(pairs, "neighbours", (kind,), (f"q[j] = {of}", f"q[2 * j] = {of}"),
                      (f"q[j + 16] = {of}", f"q[2 * j + 1] = {of}"))
    yield _format(pairs, "neighbours", ("Q4_K",),
                  ("q[i] = p[i] >> shift & 0x0F;", "q[i] = p[16 * (s % 2) + i / 2] >> i % 2 * 4 & 0x0F;"))
    yield _naive("signedness", "activations unsigned", product, "q[k] * (uint8_t)xb->qs[k]")
    yield _naive("signedness", "weights unsigned", product, "(uint8_t)q[k] * xb->qs[k]", ("Q8_0",))
    for bit, formats in ((8, ("Q4_0", "Q4_1", "Q4_K")), (16, ("Q5_0", "Q5_1", "Q5_K"))):
        yield _naive("signedness", "weights signed", product, f"((q[k] ^ {bit}) - {bit}) * xb->qs[k]", formats)


def _scales_and_edit() -> Iterator[Edit]:
    d_a, neighbour = "half_to_float(xb->d)", "neighbouring-scale"
    for which, block in (("of the block before", "b ? b - 1 : b"), ("of the next block", "b + 1 < nb ? b + 1 : b")):
        yield _naive(neighbour, which, "accumulate(acc, wb[b]", f"accumulate(acc, wb[{block}]")
    yield _naive(neighbour, "of activations before", d_a, "half_to_float((b || s ? xb - 1 : xb)->d)")
    yield _naive(neighbour, "of the next activations", d_a,
                 "half_to_float((b + 1 < nb || s + 1 < SLICES ? xb + 1 : xb)->d)")
    yield _format("group-scales-ignored", "d alone", ("Q6_K",), (", (float)scales[2 * s + h]);", ", 1.0f);"))
    yield _naive("subnormals-flushed", "of activations", d_a, _FLUSH.format(v=d_a))
    yield _format("subnormals-flushed", "of weights", ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL"),
                  ("scale(int, int) const { return half_to_float(d); }",
                   "scale(int, int) const { return " + _FLUSH.format(v="half_to_float(d)") + "; }"))
    for what, f in (("toward zero", "truncf({v})"), ("downward", "floorf({v})"),
                    ("half up, then toward zero", "truncf({v} + 0.5f)")):
        code = f.format(v="__fmul_rn(v[i], over_d)")
        yield _edit("quantizer-truncates", what, (_CODE, f"const float t = {code};"))
    yield _edit("scale-rounding", "codes from the rounded scale",
                     (_SCALE, "out.d = half_to_float(float_to_half(__fdiv_rn(amax, 127.0f)));"))
    yield _edit("scale-by-128", "codes to match", (_SCALE, "out.d = __fdiv_rn(amax, 128.0f);"),
                     ("    return out;", "    for (float& q : out.q) q = fminf(q, 127.0f);\n    return out;"))
    yield _format("scale-as-bfloat16", "the upper half of a float32", ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL"),
                  ("scale(int, int) const { return half_to_float(d); }",
                   "scale(int, int) const { return __uint_as_float((uint32_t)d << 16); }"))
    for power in ("2.0f", "0.5f"):
        yield _format("power-of-two", f"{power} times", ("Q8_0", "IQ4_NL"),
                      ("scale(int, int) const { return half_to_float(d); }",
                       f"scale(int, int) const {{ return {power} * half_to_float(d); }}"))
    yield _format("field-offset", "d from byte 2", ("Q8_0",),
                  ("scale(int, int) const { return half_to_float(d); }",
                   "scale(int, int) const { return half_to_float((uint8_t)qs[0] | (uint8_t)qs[1] << 8); }"))
    yield _format("bits-elsewhere", "the upper bits of minima missing", ("Q4_K",),
                  ("scales[g + 4] >> 4 | (scales[g] >> 6) << 4", "scales[g + 4] >> 4"))
    yield _format("bits-elsewhere", "the upper bits of scales missing", ("Q4_K",),
                  ("(scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4", "scales[g + 4] & 15"))
    yield _edit("scale-by-128", "codes as for max/127",
                     ("float_to_half(block.d)", "float_to_half(block.d * 127.0f / 128.0f)"), file=QUANTIZER)


def _strides_and_tiles() -> Iterator[Edit]:
    rows, tokens = "w + i % N * nb", "x + i / N * nb * SLICES"
    yield _naive("row-stride", "rows a block shorter", rows, "w + i % N * (nb - 1)")
    yield _naive("row-stride", "rows a block longer", rows, "w + i % N * (nb + 1)")
    yield _naive("row-stride", "every row is row 0", rows, "w")
    yield _f32("row-stride", "rows a block shorter", rows, "w + i % N * (nb - 1)")
    yield _naive("row-stride", "activations a block shorter", tokens, "x + i / N * (nb * SLICES - 1)")
    yield _naive("row-stride", "every token is token 0", tokens, "x")
    for name, size in (("Q4_0", 18), ("Q5_0", 22), ("Q8_0", 34), ("IQ4_NL", 18)):
        yield Edit("block-stride", "a padded struct", (name,), "q8_1_naive", (
            (FILE, f"struct {name} {{", f"struct alignas(4) {name} {{"),
            (FILE, f"sizeof({name}) == {size}", f"sizeof({name}) == {size + 2}"),
            ("formats/format.cuh", "sizeof(FORMAT) == BLOCK_BYTES", "sizeof(FORMAT) > BLOCK_BYTES"),
        ))
    yield _edit("integers-too-narrow", "sums of 16 bits", ("sum[h] : sum[0] + sum[1];",
                "sum[h] : (int16_t)(sum[0] + sum[1]);"), file=COMMON, formats=("Q8_0",))
    yield _naive("end-of-k-twice", "the last block", "acc = accumulate(",
                 "for (int t = 0; t < (b == nb - 1 ? 2 : 1); ++t) acc = accumulate(", ("Q4_0", "Q5_1", "Q8_0"))
    for make in (_naive, _f32):
        yield make("transposed", "written transposed", "y[i] = acc", "y[i % N * M + i / N] = acc")
        yield make("end-of-k-dropped", "the last block", "b < nb; ++b", "b < nb - 1; ++b")
        yield make("half-accumulator", "at the end", "y[i] = acc", f"y[i] = {_HALF.format(v='acc')}")
        yield make("bfloat16-accumulator", "at the end", "y[i] = acc", f"y[i] = {_BF16.format(v='acc')}")
    add, half, bfloat16 = f"acc = {_TERM}", _HALF.format(v="acc"), _BF16.format(v="acc")
    yield _naive("half-accumulator", "after each block", _TERM, _HALF.format(v=_TERM))
    yield _naive("half-accumulator", "before each block", add, f"acc = {half}; {add}")
    yield _naive("bfloat16-accumulator", "after each block", f"{add};", f"{add}; acc = {bfloat16};")
    stale = "b && b == nb - 1"
    codes = ("wb[b].unpack(s, q)", f"wb[{stale} ? b - 1 : b].unpack(s, q)")
    yield _naive("stale-tile", "codes of weights", *codes)
    yield _edit("stale-tile", "weights", codes,
                     ("accumulate(acc, wb[b]", f"accumulate(acc, wb[{stale} ? b - 1 : b]"), file=NAIVE)
    yield _naive("stale-tile", "codes of activations", "q[k] * xb->qs[k]",
                 f"q[k] * ({stale} ? xb - SLICES : xb)->qs[k]")
    for fault, what, old, new in (
        ("stale-tile", "a tile of weights never loaded", "if (g < slices) {",
         "if (g < slices && (!first || first + STEP < slices)) {"),
        ("end-of-k-dropped", "the last tile", "first < slices; first += STEP", "first + STEP < slices; first += STEP"),
    ):
        yield Edit(fault, what, ("Q4_0", "Q5_1", "Q8_0", "Q4_K"), "q8_1_tiled", ((TILED, old, new),))


def _not_in_the_catalogue() -> Iterator[Edit]:
    signature = "minimum(int, int) const { return "
    yield _format("term-factor", "offset 7", ("Q4_0",), ("ZERO = 8.0f", "ZERO = 7.0f"))
    yield _format("", "a shift by 3", ("Q4_0", "Q4_1"), ("qs[j] >> 4;", "(qs[j] >> 3) & 15;"))
    whole = ("Q8_0", "Q6_K", "IQ4_NL", "IQ3_S", "TQ2_0", "MXFP4")
    for fault, formats in (("constant-factor", whole), ("term-factor", tuple(f for f in SOME if f not in whole))):
        yield _edit(fault, "one per cent", ("float z, float products) {\n",
                    "float z, float products_) {\n    const float products = products_ * 1.01f;\n"),
                    file=COMMON, formats=formats)
    for what, new in (("a quarter of the minimum", "0.25f * "), ("three times the minimum", "3.0f * ")):
        yield _format("term-factor", what, MINIMA, (signature, signature + new))
    yield _format("code-bits", "the high bits shifted by 2", ("Q6_K",), ("<< 4) - 32;", "<< 2) - 32;"))
    yield _format("term-factor", "offset 31", ("Q6_K",), ("<< 4) - 32;", "<< 4) - 31;"))
    yield _naive("position-factor", "a value of 16 left out", "k < 16 * h + 16; ++k) sum", "k < 16 * h + 15; ++k) sum")
    yield _naive("block-factor", "the first block left out", "int64_t b = 0; b < nb", "int64_t b = 1; b < nb")
    yield _naive("", "activations reversed", "q[k] * xb->qs[k]", "q[k] * xb->qs[31 - k]")
    yield _naive("", "scale of the first block", "accumulate(acc, wb[b]", "accumulate(acc, wb[0]")
    yield _naive("", "the next token's scale", "half_to_float(xb->d)",
                 "half_to_float((i / N + 1 < M ? xb + nb * SLICES : xb)->d)")
    yield _edit("", "codes one too large", (_CODE, _CODE.replace(";", " + (i == 3 ? 1.0f : 0.0f);")))
    yield _edit("", "scale by 126", (_SCALE, "out.d = __fdiv_rn(amax, 126.0f);"))
# fmt: on


EDITS: tuple[Edit, ...] = (
    *_offsets_and_sums(), *_order_of_codes(), *_scales_and_edit(), *_strides_and_tiles(), *_not_in_the_catalogue(),
)  # fmt: skip


def altered(folder: Path, edit: Edit, kind: str) -> Path:
    """Return a copy of the sources with the edit, for a format. Raises ValueError if they do not contain its text."""
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
    """Return every edit with each of its formats that is among these."""
    return [(edit, kind) for edit in EDITS for kind in edit.formats if kind in formats]
