"""The probe plan: what hides behind the round shapes of models, domains that are declared, and what a report says of
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gguf_verify import Shape, kernel
from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.kernels.domain import EVERYTHING, Domain, Extent, domain_of
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.layers.probes.turns import ORDER
from gguf_verify.rungs.plan import in_words, plan
from gguf_verify.support.errors import UsageError
from gguf_verify.verification import verify
from tests.support.tools import FIXTURES

Floats = np.ndarray
ONE = r"^blk\.0\.attn_k\.weight$"


def product(weights: Any, activations: Any, shape: Shape) -> Floats:
    """The product of Q4_0 and Q8_1, by float64."""
    w = weights.reshape(shape.n, -1, Q4_0.block_bytes)
    x = activations.reshape(shape.m, shape.k // 32, Q8_1.block_bytes)
    view, given = Q4_0.view(w), Q8_1.view(x)
    codes = Q4_0.codes(w).astype(np.float64)
    d, da, s = (v.astype(np.float64) for v in (view["d"], given["d"], given["s"]))
    scaled = (Q8_1.codes(x) * da[..., None]).reshape(shape.m, shape.k)  # m may be 0
    y = scaled @ (codes * d[..., None]).reshape(shape.n, -1).T - 8.0 * s @ d.T
    return np.asarray(y, np.float32)


def verified(wrong: Callable[[Floats, Shape], None], probes: Any = "full", **declared: Any) -> Report:
    """The report of the product above with something done to it."""

    @kernel(formats=["Q4_0"], semantics="q8_1", **declared)
    def tried(weights: Any, activations: Any, shape: Shape) -> Floats:
        y = product(weights, activations, shape)
        wrong(y, shape)
        return y

    options = Options(prompt="Once upon a time", tensor=ONE, n_predict=1, threads=2, progress=False, probes=probes)
    return verify(FIXTURES / "tiny-Q4_0.gguf", tried, "cpu", ["layers"], options)


def right(y: Floats, shape: Shape) -> None:
    pass


def of_some_tokens(y: Floats, shape: Shape) -> None:
    if 70 <= shape.m <= 74:
        y[shape.m // 2] *= 1.5


def past_8192_rows(y: Floats, shape: Shape) -> None:
    y[:, 8192:] = 0


def past_long_rows(y: Floats, shape: Shape) -> None:
    if shape.k > 9600:
        y *= 1.001


def past_whole_64(y: Floats, shape: Shape) -> None:
    y[:, shape.n // 64 * 64 :] = 0


def many_tokens(y: Floats, shape: Shape) -> None:
    if shape.m >= 512:
        y[-1] += 1


@pytest.mark.parametrize(
    "wrong",
    [
        of_some_tokens,
        past_8192_rows,
        past_long_rows,
        past_whole_64,
        many_tokens,
    ],
)
def test_wrong_where_no_model_looks(wrong: Callable[[Floats, Shape], None]) -> None:
    report = verified(wrong)
    assert report.exit_code == 1
    assert set(report.culprits) == {"kernel"}
    (rung,) = report.rungs
    assert all("other N and K" in f.what for f in rung.failures), [f.what for f in rung.failures]
    if wrong is of_some_tokens:
        assert any("wrong with 71-73 tokens" in note for note in rung.notes), rung.notes


def test_what_a_right_kernel_is_said_to_hold_for() -> None:
    report = verified(right)
    assert report.exit_code == 0, report.failures
    assert report.culprits == {}
    (envelope,) = report.rungs[0].envelopes
    tokens = {m for r in envelope.tokens.split(", ") for m in range(int(r.split("-")[0]), int(r.split("-")[-1]) + 1)}
    assert tokens >= {*range(65), 127, 128, 129, 255, 257, 511, 513, 1023, 1024, 1025}
    assert envelope.rows.endswith("128256, 151936")
    assert envelope.columns.endswith("32768")
    assert envelope.not_covered
    assert {"races", "alignment", "schedules", "walls"} <= {skipped.check for skipped in report.rungs[0].skipped}
    assert envelope.under_test


def test_outside_its_domain_a_kernel_is_not_asked() -> None:
    def only_decoding(y: Floats, shape: Shape) -> None:
        assert shape.m == 1

    report = verified(only_decoding, "brief", domain={"M": 1})
    assert report.exit_code == 0, report.failures
    assert report.rungs[0].envelopes[0].tokens == "1"
    assert report.rungs[0].envelopes[0].domain == "M = 1"

    def of_its_own(y: Floats, shape: Shape) -> None:
        assert shape.n % 64 == 0
        assert shape.k % 128 == 0
        assert 8 <= shape.m <= 16

    sizes = {"M": {"least": 8, "most": 16}, "N": {"multiple": 64}, "K": {"multiple": 128}}
    report = verified(of_its_own, "brief", domain=sizes)
    assert report.exit_code == 0, report.failures

    report = verified(right, "brief", domain={"N": {"multiple": 100}})
    assert report.exit_code == 5
    assert set(report.culprits) == {"coverage"}
    assert "N = 128 is outside its domain: N a multiple of 100" in report.rungs[0].unverified[0].why


def test_a_kernel_that_is_never_called() -> None:
    @kernel(formats=["Q4_0"], semantics="q8_1")
    def never(weights: Any, activations: Any, shape: Shape) -> Floats:
        raise AssertionError

    options = Options(prompt="Once", tensor=ONE, n_predict=1, threads=2, progress=False, probes="brief")
    report = verify(FIXTURES / "tiny-F16.gguf", never, "cpu", options=options)
    assert report.exit_code == 5
    assert [rung.verdict for rung in report.rungs] == ["passed", "unverified", "unverified", "unverified"]
    assert set(report.culprits) == {"coverage"}
    assert all("was never called" in rung.unverified[0].why for rung in report.rungs[1:])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([], "domain is a table"),
        ({"m": 1}, "knows M, N, K and architectures"),
        ({"M": 0}, "least of M"),
        ({"M": {"least": 9, "most": 8}}, "no M is in"),
        ({"M": {"multiple": 16, "most": 8}}, "no M is in"),
        ({"K": {"multiple": 1 << 40}}, "multiple of K"),
        ({"K": True}, "K of a domain is a number"),
        ({"architectures": "sm_90"}, "architectures of a domain are a list"),
        ({"architectures": ["90"]}, "architectures of a domain are a list"),
    ],
)
def test_domains_that_are_none(said: object, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        domain_of(said)


def test_calls_of_an_extent() -> None:
    assert list(Extent(1, 1).parts(3)) == [(1, 1)] * 3
    assert list(Extent(multiple=8).parts(18)) == [(16, 16), (2, 8)]
    assert list(Extent(9, 40).parts(85)) == [(40, 40), (40, 40), (5, 9)]
    for extent in (Extent(1, 1), Extent(multiple=8), Extent(9, 40), Extent(3, 48, 6)):
        for total in range(1, 100):
            parts = list(extent.parts(total))
            assert sum(wanted for wanted, _ in parts) == total
            assert all(given in extent and wanted <= given for wanted, given in parts)


@pytest.mark.parametrize("unit", [1, 32, 256])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "domain",
    [EVERYTHING, Domain(m=Extent(1, 1)), Domain(Extent(multiple=8), Extent(multiple=64), Extent(256, 8192, 256))],
)
def test_every_probe_is_inside_the_domain(domain: Domain, unit: int, seed: int) -> None:
    probes = plan(domain, unit, True, seed)
    assert probes == plan(domain, unit, True, seed)
    for probe in probes:
        assert probe.n in domain.n
        assert probe.k in domain.k
        assert probe.k % unit == 0
        assert all(m in domain.m for m in probe.tokens)
    tokens = {m for probe in probes for m in probe.tokens}
    assert all(m in tokens for m in range(1, 65) if m in domain.m)
    blocks = {p.blocks for p in probes}
    assert blocks == {"the model's", "any bits", "each class of each field", "every half of a field"}


def test_a_kernel_without_a_quantizer_gets_no_call_twice() -> None:
    """Given values or their bytes, a foreign kernel gets the same operands."""
    report = verified(right, "brief")
    (layers,) = report.rungs
    (envelope,) = layers.envelopes
    assert layers.passed
    planned = plan(Domain(), 32, True, report.environment.options.seed, brief=True)
    assert envelope.calls == sum(len(probe.tokens) for probe in planned) + len(ORDER)


def test_in_words() -> None:
    assert in_words([3, 1, 2, 7, 9, 8, 2]) == "1-3, 7-9"
    assert in_words([]) == ""
