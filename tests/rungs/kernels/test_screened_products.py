"""A run whose products are screened (semantics/screen.py) says what one says whose products are all computed whole."""

from __future__ import annotations

import math

import pytest

from gguf_verify.results.report import Report
from gguf_verify.semantics import screen
from gguf_verify.semantics.sums import Product
from tests.support.foreign_runs import KERNELS, verified

NEVER = 1 << 62


def runs(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Report, Report]:
    """With whole products, and with screened ones, some of whose rows are settled one by one."""
    settled, made, asked = Product.settled, [], []

    def counted(product, rows):
        asked.append(len(rows))
        return settled(product, rows)

    monkeypatch.setattr(Product, "settled", counted)
    monkeypatch.setattr(screen, "FEW", 0)
    for small in (NEVER, 0):
        asked.clear()
        monkeypatch.setattr(screen, "SMALL", small)
        made.append(verified(f"{KERNELS}:{name}", "layers"))
    assert len(asked) > 20
    return made[0], made[1]


@pytest.mark.parametrize("name", ["quantizes", "sums_in_order", "drops_s", "partial", "nan"])
def test_the_same_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, screened = runs(name, monkeypatch)
    assert whole.exit_code == screened.exit_code
    (of_whole,), (of_screened,) = whole.rungs, screened.rungs
    assert of_whole.checked == of_screened.checked
    assert [f.what for f in of_whole.failures] == [f.what for f in of_screened.failures]
    assert [(f.tensor, f.row, f.token, f.culprit) for f in of_whole.failures] == [
        (f.tensor, f.row, f.token, f.culprit) for f in of_screened.failures
    ]
    for side, worst in of_whole.worst.items():
        other = of_screened.worst[side]
        assert other.where == worst.where
        assert math.isclose(other.utilisation, worst.utilisation, rel_tol=1e-4)
