"""The largest sizes at which CUDA makes a kernel's launches: found exactly, and stated in the headline of a pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gguf_verify.checks import scope_of
from gguf_verify.kernels.domain import Domain, Extent, domain_of
from gguf_verify.kernels.launches import Launched
from gguf_verify.report.run_words import headline
from gguf_verify.report.writer import Kind
from gguf_verify.rungs.layers.probes.limits import Limit, Refusal, limit_of, record_limit
from gguf_verify.support.errors import UsageError
from tests.support.nights import run_result
from tests.support.shown import last_line, text_of

EVERYTHING = Domain()


def refusing(grid: Callable[[int, int, int], tuple[int, int, int, int]]) -> Refusal:
    """A kernel whose launch has the grid, and the shared memory, of M, N and K."""

    def refused(m: int, n: int, k: int) -> str | None:
        x, y, z, shared = grid(m, n, k)
        return Launched((x, y, z), (128, 1, 1), shared).refused

    return refused


CASES = {
    "tokens in y": (lambda m, n, k: (n, m, 1, 0), (1 << 20, 64, 1024), ("M", 65_535)),
    "tiles of tokens in y": (lambda m, n, k: (n, -(-m // 12), 1, 0), (1 << 20, 64, 1024), ("M", 786_420)),
    "rows in z": (lambda m, n, k: (m, 1, n, 0), (64, 1 << 20, 1024), ("N", 65_535)),
    "shared memory of a row": (lambda m, n, k: (n, m, 1, 8 * k), (2, 3, 32_768), ("K", 29_056)),
    "all outputs in y": (lambda m, n, k: (1, m * n, 1, 0), (1 << 20, 64, 1024), ("M", 1_023)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_limit_is_found_exactly(name: str) -> None:
    grid, tried, expected = CASES[name]
    limit = limit_of(refusing(grid), tried, EVERYTHING, 32)
    assert limit is not None
    assert (limit.name, limit.most) == expected
    assert limit.scope == f"up to {expected[0]} = {expected[1]:,}"
    assert "does not launch" in limit.why


def test_what_is_launched_at_no_size_has_no_limit() -> None:
    assert limit_of(refusing(lambda m, n, k: (1, 1, 1, 1 << 20)), (1 << 20, 64, 1024), EVERYTHING, 32) is None


def test_a_limit_is_a_size_of_the_domain() -> None:
    tokens_in_y = refusing(lambda m, n, k: (n, m, 1, 0))
    limit = limit_of(tokens_in_y, (1 << 20, 64, 1024), Domain(m=Extent(least=8, multiple=8)), 32)
    assert limit is not None
    assert limit.most == 65_528


def test_a_limit_beyond_what_models_have_is_verified_up_to_there() -> None:
    report = run_result()
    record_limit(report.rungs[2], Limit("M", 65_535, "its grid is too large"), "Q4_0", "blk.0.attn_q.weight")
    assert (report.exit_code, headline(report)) == (0, "VERIFIED up to M = 65,535")
    shown = text_of(Kind.RUN, report, width=80)
    assert last_line(shown).startswith("VERIFIED up to M = 65,535 in ")
    assert "limit: Q4_0: its grid is too large. It is verified up to M = 65,535" in " ".join(shown.split())
    assert "domain = { M = { most = 65535 } }, or use another grid" in " ".join(shown.split())


def test_a_limit_below_sizes_that_models_have_is_not_verified() -> None:
    report = run_result()
    record_limit(report.rungs[2], Limit("N", 65_535, "its grid is too large"), "Q4_0", "blk.0.attn_q.weight")
    assert (report.exit_code, report.verdict) == (5, "not everything verified")
    assert report.culprits == {"kernel": 1}
    assert "Q4_0, N above 65,535" in text_of(Kind.RUN, report, width=200)


def test_the_least_limit_of_all_types_is_in_the_headline() -> None:
    scopes = ["up to M = 65,535", "quick", "up to M = 1,024", "up to K = 29,056"]
    assert scope_of((), scopes) == " up to M = 1,024 and K = 29,056 (quick)"


def test_a_domain_takes_a_range() -> None:
    assert domain_of({"M": "1-65535"}) == domain_of({"M": {"most": 65535}})
    assert domain_of({"N": " 8 - 64 "}).n == Extent(8, 64)
    for wrong in ("65535", "1-", "-5", "9-3", "1-x", "0-4", "1-65535-2", "\u0661-\u0662"):
        with pytest.raises(UsageError):
            domain_of({"M": wrong})
