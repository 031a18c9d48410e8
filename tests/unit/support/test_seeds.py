"""Each run has a seed of its own, which every report prints and which repeats it."""

from __future__ import annotations

import pytest

from gguf_verify.cli.verify import build_parser, kernel_options
from gguf_verify.kernels.domain import Domain
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import Options
from gguf_verify.rungs.plan import plan
from gguf_verify.support import seeds
from gguf_verify.support.errors import UsageError
from tests.support.nights import run_result
from tests.support.shown import text_of, written

#: The sizes known to a kernel that was made for seed 0: the columns of its plan, and all of few blocks.
KNOWN = {probe.k for probe in plan(Domain(), 32, True, 0)} | {*range(32, 2200, 32)}


def test_runs_have_different_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seeds.VARIABLE)
    drawn = {Options().seed for _ in range(20)}
    assert len(drawn) > 10
    assert all(0 <= seed <= seeds.MOST_SEED for seed in drawn)
    args = [build_parser().parse_args(["m.gguf"]) for _ in range(20)]
    assert len({kernel_options(one)["seed"] for one in args}) > 10
    assert kernel_options(build_parser().parse_args(["m.gguf", "--seed", "0"]))["seed"] == 0


def test_the_variable_fixes_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seeds.VARIABLE, "17")
    assert Options().seed == 17
    for wrong in ("-1", "x", "1.5", "9" * 30, "\u0661"):
        monkeypatch.setenv(seeds.VARIABLE, wrong)
        with pytest.raises(UsageError, match=r"GGUF_VERIFY_SEED: .* is not a whole number"):
            Options()


@pytest.mark.parametrize("flag", ["", "--markdown", "--html", "--card", "--json"])
def test_every_report_prints_the_seed(flag: str) -> None:
    report = run_result()
    object.__setattr__(report.environment.options, "seed", 987654321)
    assert "987654321" in (str(written(flag, Kind.RUN, report)) if flag else text_of(Kind.RUN, report, width=80))


def test_no_seed_plans_what_another_does() -> None:
    for seed in range(1, 40):
        planned = plan(Domain(), 32, True, seed)
        assert planned == plan(Domain(), 32, True, seed)
        assert {probe.k for probe in planned} - KNOWN, seed


@pytest.mark.parametrize("unit", [32, 256])
def test_a_brief_plan_has_random_sizes_of_each_dimension(unit: int) -> None:
    """Which the full plan has too, so a kernel that is correct at the planned sizes alone passes neither."""

    def sizes(seed: int, brief: bool) -> list[set[int]]:
        """The numbers of tokens, rows and columns."""
        probes = plan(Domain(), unit, True, seed, brief)
        assert not brief or sum(len(p.tokens) for p in probes) < 40
        return [{m for p in probes for m in p.tokens}, {p.n for p in probes}, {p.k for p in probes}]

    seeds_of_runs = range(40)
    found = [sizes(seed, True) for seed in seeds_of_runs]
    for seed in seeds_of_runs:
        assert all(few <= whole for few, whole in zip(found[seed], sizes(seed, False), strict=True))
    for of_each_seed in zip(*found, strict=True):
        assert len(set.union(*of_each_seed) - set.intersection(*of_each_seed)) > 20
