"""docs/claims.md agrees with the checks of claims, and each check can return another verdict."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.q5_0 import Q5_0
from gguf_verify.formats.q5_1 import Q5_1
from gguf_verify.formats.q8_0 import Q8_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.q8_1_d4 import Q8_1_D4
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.result import exact_result
from gguf_verify.support.errors import EnvironmentFault
from tools.measure import claims
from tools.measure.__main__ import main
from tools.measure.claims import arithmetic, blocks, products, speed
from tools.measure.claims.common import FIVE, Claim, Sources, figure, span, sum_of_codes, verdict, with_sums, written_up

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def sources(llama: Llama) -> Sources:
    return Sources(llama)


@pytest.fixture(scope="module")
def made(sources: Sources) -> Callable[[str], Claim]:
    """The record of each check, made once."""

    @cache
    def run(name: str) -> Claim:
        try:
            return claims.CHECKS[name](sources)
        except EnvironmentFault as fault:
            pytest.skip(str(fault))

    return run


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_current(made: Callable[[str], Claim]) -> None:
    expected = claims.render({name: made(name) for name in claims.CHECKS})
    assert claims.PAGE.read_text() == expected, "run `python -m tools.measure claims`"


#: The expected verdicts, so that none changes by accident.
VERDICTS = {
    "q4_0_scale": "false",
    "quantizers_byte_identical": "false: no block of Q4_0 and Q5_0",
    "scales_are_fp32": "true only for activations that CUDA's MMQ",
    "s_is_the_raw_sum": "true only for CUDA",
    "bit_order": "true",
    "offset_formula": "true only for CUDA, 8 tokens (MMVQ)",
    "leaving_out_s": "true only for products that use s, minima away from 0 and activations whose blocks",
    "nmse_on_gaussian_data": "false",
    "raw_sums_are_more_accurate": "false",
    "one_figure_per_format": "false",
    "q8_0_misaligned": "true only for loads of 4 bytes",
    "vec_dot_ratio": "true only for Q4_0, Q4_1, Q5_0, Q5_1 and MXFP4, and in MMQ only without tensor cores",
    "reuse": "true only for the bytes that are read",
    "flop_per_byte": "true only for halves, and for the conclusion: it is 3.56 for Q4_0",
    "laptop_peak": "false: the product counts operations per cycle",
    "registers_and_stream_k": "true only for ",
    "memory": "true only for halves",
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(made: Callable[[str], Claim], name: str) -> None:
    assert made(name).verdict.startswith(VERDICTS[name])


def test_a_page_that_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    check: dict[str, Any] = {"one": lambda _s: Claim("The statement.", "true", ("Evidence 1.",))}
    monkeypatch.setattr(claims, "CHECKS", check)
    monkeypatch.setattr(claims, "PAGE", tmp_path / "claims.md")
    assert main(["claims", "--check"]) == 1
    assert not claims.PAGE.exists()
    assert main(["claims"]) == 0
    assert main(["claims", "--check"]) == 0
    check["one"] = lambda _s: Claim("The statement.", "false", ("Evidence 2.",))
    capsys.readouterr()
    assert main(["claims", "--check"]) == 1
    assert "+**False.**" in capsys.readouterr().out

    def cannot(_s: Sources) -> Claim:
        raise EnvironmentFault("there is no compiler")

    check["one"] = cannot
    assert main(["claims"]) == 3
    assert capsys.readouterr().err == "gguf-verify: there is no compiler\n"


# ---- checks that must see the difference -----------------------------------------------------------------------------


class Altered:
    """llama.cpp with some of its functions replaced."""

    def __init__(self, llama: Any, **calls: Callable[..., Any]) -> None:
        self._llama, self._calls = llama, calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._llama, name)


def by_write_ups(type_id: int, x: Array) -> Array:
    return written_up(next(f for f in FORMATS.values() if f.type_id == type_id), x)


def test_a_quantizer_by_write_ups_is_detected(sources: Sources) -> None:
    theirs = replace(sources, llama=Altered(sources.llama, quantize=by_write_ups))
    assert blocks.q4_0_scale(theirs).verdict == "true"
    assert blocks.quantizers_byte_identical(theirs).verdict == "true"

    def one_code(type_id: int, x: Array) -> Array:
        raw = by_write_ups(type_id, x)
        if type_id == Q5_1.type_id:
            raw[7, -1] ^= 1
        return raw

    one = blocks.quantizers_byte_identical(replace(sources, llama=Altered(sources.llama, quantize=one_code)))
    assert one.verdict == "true only for Q4_0, Q4_1, Q5_0 and Q8_0; all but 3 blocks of Q5_1 agree"


def test_float32_scales_are_detected(sources: Sources) -> None:
    def wide(type_id: int, x: Array) -> Array:
        amax = np.abs(x).reshape(len(x), -1, 32).max(axis=-1)
        return Q8_1_D4.pack(d=amax / np.float32(127), qs=np.zeros((*amax.shape, 32), np.int8)).reshape(len(x), -1)

    theirs = replace(sources, llama=Altered(sources.llama, from_float=wide))
    assert blocks.scales_are_fp32(theirs).verdict == "true"
    halves = Q8_1_D4.view(sources.cuda["mmq_d4"].reshape(4, -1, 36)).copy()
    halves["d"] = halves["d"].astype(np.float16)
    x = halves.view(np.uint8).reshape(4, -1)
    y = product(SEMANTICS["mmq_d4"], Q8_0, sources.cuda["Q8_0/w"], x, order=ASCENDING).ordered
    assert y is not None
    half = replace(sources, cuda={**sources.cuda, "Q8_0/many": y})
    assert blocks.scales_are_fp32(half).verdict == "false"


def test_other_sums_are_detected(sources: Sources) -> None:
    raw = replace(sources, llama=Altered(sources.llama, from_float=lambda _type, x: encode_q8_1(x)))
    assert blocks.s_is_the_raw_sum(raw).verdict == "true"
    a = sources.cuda["q8_1"]
    y = product(SEMANTICS["q8_1_half"], Q5_1, sources.cuda["Q5_1/w"], with_sums(a, sum_of_codes(a)), order=ASCENDING)
    assert y.ordered is not None
    codes = replace(sources, cuda={**sources.cuda, "Q5_1/few": y.ordered})
    assert blocks.s_is_the_raw_sum(codes).verdict == "false"


def test_another_order_of_bits_is_detected(sources: Sources) -> None:
    def interleaved(type_id: int, raw: Array, n: int) -> Array:
        """Bits 2j and 2j + 1 of qh belong to the two nibbles of qs[j]."""
        values = sources.llama.to_float(type_id, raw, n)
        if type_id == Q5_0.type_id:
            altered = raw.copy()
            bits = np.unpackbits(raw[:, 2:6], axis=1, bitorder="little")
            altered[:, 2:6] = np.packbits(np.concatenate([bits[:, ::2], bits[:, 1::2]], 1), axis=1, bitorder="little")
            values = sources.llama.to_float(type_id, altered, n)
        return values

    theirs = replace(sources, llama=Altered(sources.llama, to_float=interleaved))
    assert blocks.bit_order(theirs).verdict == "true only for Q5_1 and Q8_1 of the CPU"

    def pairs(_type: int, x: Array) -> Array:
        out = encode_q8_1(x)
        out[:, 4:] = out[:, 4:].reshape(-1, 2, 16).transpose(0, 2, 1).reshape(-1, 32)
        return out

    theirs = replace(sources, llama=Altered(sources.llama, from_float=pairs))
    assert blocks.bit_order(theirs).verdict == "true only for Q5_0 and Q5_1"


def test_another_formula_is_detected(sources: Sources) -> None:
    def raw_sums(type_id: int, w: Array, x: Array) -> Array:
        fmt = next(f for f in FORMATS.values() if f.type_id == type_id)
        return exact_result(SEMANTICS["q8_1"], fmt, w, encode_q8_1(x)).astype(np.float32)

    theirs = replace(sources, llama=Altered(sources.llama, multiply=raw_sums))
    assert products.offset_formula(theirs).verdict == (
        "true only for CUDA, 8 tokens (MMVQ), CPU, M = 1, CPU, M = 8 and CPU, M = 64"
    )
    y = sources.cuda["Q4_0/few"].copy()
    y[0, 0] *= np.float32(1.001)
    assert products.offset_formula(replace(sources, cuda={**sources.cuda, "Q4_0/few": y})).verdict == "false"


def test_sums_that_stay_are_detected(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "with_sums", lambda x, _s: x)
    assert products.leaving_out_s(sources).verdict == "false"


def test_exceptions_of_leaving_out_s_are_measured(sources: Sources) -> None:
    def shifted(type_id: int, x: Array) -> Array:
        """Non-negative weights get minima far from 0."""
        return sources.llama.quantize(type_id, x - 8 if x.min() >= 0 else x)

    found = products.leaving_out_s(replace(sources, llama=Altered(sources.llama, quantize=shifted)))
    assert found.verdict == "true only for products that use s and activations whose blocks do not sum to 0"


def test_other_data_are_detected(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform data and the write-ups' quantizer, in place of Gaussian data and ggml's."""

    def gaussian(seed: int, *shape: int) -> Array:
        return 2 * np.random.default_rng(seed).random(shape, np.float32) - 1

    monkeypatch.setattr(products, "SEEDS", range(10))
    monkeypatch.setattr(products, "gaussian", gaussian)
    found = products.nmse_on_gaussian_data(replace(sources, llama=Altered(sources.llama, quantize=by_write_ups)))
    assert found.verdict == "true only for Q4_0, Q4_1, Q8_0, W4A8 and W4A16"


def test_better_sums_are_detected(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "sum_of_codes", lambda x: sum_of_codes(x) * np.float32(1.5))
    theirs = Altered(sources.llama, multiply=lambda *a: sources.llama.multiply(*a) * np.float32(1.1))
    assert products.raw_sums_are_more_accurate(replace(sources, llama=theirs)).verdict == "true"


def test_formats_of_one_error_are_detected(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights with a single value, which every format represents exactly up to the scale."""
    monkeypatch.setattr(products, "real_weights", lambda: {"w": np.ones((4, 256), np.float32)})

    class Ones:
        def random(self, shape: Any, dtype: Any = None) -> Array:
            return np.ones(shape, np.float32)

        def laplace(self, size: Any) -> Array:
            return np.ones(size)

        def standard_t(self, _degrees: int, shape: Any) -> Array:
            return np.ones(shape)

    monkeypatch.setattr(products, "gaussian", lambda _seed, *shape: np.ones(shape, np.float32))
    monkeypatch.setattr(np.random, "default_rng", lambda _seed: Ones())
    shifted = replace(sources, llama=Altered(sources.llama, quantize=lambda t, x: sources.llama.quantize(t, x * 1.01)))
    assert products.one_figure_per_format(shifted).verdict == "true"


def test_aligned_words_are_detected(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the sanitizer reports no load, the claim is false; if it reports 2-byte loads, it is true without limits."""
    monkeypatch.setattr(blocks, "_sanitized", lambda *_: "clean")
    assert blocks.q8_0_misaligned(sources).verdict == "false"
    monkeypatch.setattr(blocks, "_sanitized", lambda *_: "load of misaligned address")
    assert blocks.q8_0_misaligned(sources).verdict == "true; Q4_0 and Q5_0 fail likewise"


# ---- speed -----------------------------------------------------------------------------------------------------------


def with_table(page: str, name: str, rows: list[str]) -> str:
    """The page with other rows in one of its tables."""
    text, count = re.subn(
        rf"(<!-- bench: {name} -->\n\|[^\n]*\n\|[^\n]*\n).*?(<!-- end -->)",
        lambda m: m[1] + "".join(f"| {row} |\n" for row in rows) + m[2], page, flags=re.DOTALL,
    )  # fmt: skip
    assert count == 1
    return text


AS_CLAIMED = [
    "`q8_1_naive` | 1 | 1 | 1", "`q8_1_tiled` | 1.8 | 1.7 | 1", "`q8_1_vectorized` | 2 | 2 | 1",
    "`q8_1_dp4a` | 8 | 7 | 1",
    "`q8_1_dp4a_tiled` | 12 (6×) | 12 | ", "`q8_1_mma` | 30 (2.5×) | 30 | 1", "`q8_1_wgmma` | 31 | 31 | ",
    "llama.cpp | 87 | 88 | 1",
]  # fmt: skip
F32_AS_CLAIMED = ["`f32_naive` | 1 | 1", "`f32_tiled` | 1.76 | 1.76", "`f32_vectorized` | 2 | 2"]


def test_gains_are_detected(sources: Sources) -> None:
    page = with_table(with_table(sources.benchmarks, "ladder", AS_CLAIMED), "ladder of f32", F32_AS_CLAIMED)
    fast = speed.gains(replace(sources, benchmarks=page))
    assert fast.verdict.startswith("true on one ")
    slow = [row.replace("30", "60") for row in AS_CLAIMED]
    found = speed.gains(replace(sources, benchmarks=with_table(page, "ladder", slow)))
    assert found.verdict.startswith("true only for ")
    assert "mma`" not in found.verdict.replace("wgmma`", "")
    missing = speed.gains(replace(sources, benchmarks=with_table(page, "ladder", AS_CLAIMED[:1])))
    assert any("| not measured here |" in part for part in missing.evidence)
    with pytest.raises(ValueError, match="no place is marked <!-- bench: ladder -->"):
        speed.gains(replace(sources, benchmarks=page.replace("bench: ladder -->", "")))


def test_costs_are_detected(sources: Sources) -> None:
    def rows(q5: float) -> list[str]:
        times = {"Q4_0": 10.0, "Q4_1": 11.0, "Q5_0": q5, "Q5_1": q5, "Q8_0": 12.0}
        return [
            f"{kind} | {n} | " + " | ".join([f"1.00× ({us})"] * columns)
            for kind, us in times.items()
            for n in (4096, 14336)
        ]

    columns = len(speed.bench_table(sources.benchmarks, "against llama.cpp")[0]) - 2

    costs = [
        speed.q5_cost(replace(sources, benchmarks=with_table(sources.benchmarks, "against llama.cpp", rows(q5))))
        for q5 in (11.8, 11.0)
    ]
    assert costs[0].verdict.startswith("true on one ")
    assert costs[1].verdict.startswith("false on one ")
    assert "+18 %" in costs[0].evidence[1]


def test_counts_are_detected(sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(arithmetic, "CLAIMED_VDR", (2, 8))
    assert arithmetic.vec_dot_ratio(sources).verdict.startswith("true only for Q8_0, Q4_K and Q5_K, and in MMQ")
    monkeypatch.setattr(arithmetic, "VDR", {"Q8_0": (2, 8, 1)})
    assert arithmetic.vec_dot_ratio(sources).verdict == "true"
    monkeypatch.setattr(arithmetic, "GIGABYTES", (14.0, 3.9))
    assert arithmetic.memory(sources).verdict == "true only for halves, Q4_0, Q4_K, IQ4_NL and NVFP4"
    monkeypatch.setattr(arithmetic, "MULTIPROCESSORS", 8)
    assert arithmetic.registers_and_stream_k(sources).verdict.startswith("false for stream-K")

    folder = tmp_path / "gemm" / "q8_1"
    folder.mkdir(parents=True)
    (folder / "02_tiled.cu").write_text("TOKENS = 8, ROWS = 32")
    other = arithmetic.reuse(replace(sources, kernels=tmp_path))
    assert "8 tokens and 32 rows" in other.evidence[0]
    (folder / "02_tiled.cu").write_text("TOKENS = 8")
    with pytest.raises(ValueError, match="has no tile size"):
        arithmetic.reuse(replace(sources, kernels=tmp_path))


def test_a_gain_as_large_as_the_reuse_is_detected(sources: Sources) -> None:
    rows = ["`q8_1_naive` | 1 | 1 | 1", "`q8_1_tiled` | 16 | 16 | 1"]
    page = with_table(sources.benchmarks, "ladder", rows)
    assert arithmetic.reuse(replace(sources, benchmarks=page)).verdict == "true"


# ---- what they share -------------------------------------------------------------------------------------------------


def test_words_and_figures() -> None:
    assert [verdict({"a": a, "b": b}) for a, b in ((True, True), (False, False), (True, False))] == [
        "true",
        "false",
        "true only for a",
    ]
    assert verdict({"a": True, "b": True, "c": True, "d": False}) == "true only for a, b and c"
    assert [figure(v) for v in (221.4, 9.96, 0.00234, 10.2, 1.0)] == ["220", "10", "0.0023", "10", "1.0"]
    assert span([2.0, 1.0, 1.5], 2) == "1.0 to 2.0"
    assert span([0.00151, 0.00149], 2) == "0.0015"


@pytest.mark.parametrize("fmt", FIVE, ids=lambda f: f.name)
def test_both_products_are_the_oracles(fmt: BlockFormat) -> None:
    rng = np.random.default_rng(2)
    w, x = (rng.standard_normal(shape, np.float32) for shape in ((7, 128), (3, 128)))
    raw, taken = written_up(fmt, w), encode_q8_1(x)
    for y, name, a in zip(
        products.both_products(fmt, raw, x, taken), ("f32", "q8_1"), (x.view(np.uint8), taken), strict=True
    ):
        np.testing.assert_allclose(y, exact_result(SEMANTICS[name], fmt, raw, a), rtol=0, atol=1e-5)


def test_sums_are_replaced() -> None:
    x = encode_q8_1(np.random.default_rng(1).standard_normal((2, 64), np.float32))
    none, other = Q8_1.view(with_sums(x, 0).reshape(2, 2, 36)), Q8_1.view(x.reshape(2, 2, 36))
    assert (none["s"] == 0).all()
    assert (none["qs"] == other["qs"]).all()
    assert (none["d"] == other["d"]).all()
