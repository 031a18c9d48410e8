"""What a device keeps of weights."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.hosts.cupy_arrays import CheckedRows
from gguf_verify.hosts.kept import Kept


def of_file(n: int) -> np.ndarray:
    w = np.arange(n, dtype=np.uint8).reshape(1, n)
    w.flags.writeable = False
    return w


def test_weights_of_a_file_are_kept_while_there_is_room() -> None:
    kept, first, second, third = Kept(100), of_file(3), of_file(3), of_file(3)
    assert kept.of("Q4_0", first, 60, lambda: "first") == "first"
    assert kept.of("Q4_0", second, 60, lambda: "second") is None
    assert kept.of("Q4_0", third, 40, lambda: "third") == "third"
    for w, expected in ((first, "first"), (third, "third")):
        assert kept.of("Q4_0", w, 60, lambda: "again") == expected
    assert kept.of("Q4_0", first[:, :2], 0, lambda: "a part") == "a part"
    assert kept.of("Q4_1", first, 0, lambda: "another type") == "another type"


def test_what_cannot_be_made_is_not_tried_again() -> None:
    kept, w, tried = Kept(100), of_file(3), list[int]()
    for _ in range(2):
        assert kept.of("Q4_0", w, 60, lambda: tried.append(1)) is None
    assert tried == [1]
    assert kept.of("Q4_0", of_file(4), 100, lambda: "it takes no room") == "it takes no room"


def test_of_other_weights_the_last_are_kept() -> None:
    kept, one, other = Kept(0), np.zeros((1, 3), np.uint8), np.zeros((1, 3), np.uint8)
    assert kept.of("Q4_0", one, 60, lambda: "a") == "a"
    assert kept.of("Q4_0", one, 60, lambda: "b") == "a"
    assert kept.of("Q4_0", other, 60, lambda: "c") == "c"
    assert kept.of("Q4_0", one, 60, lambda: "d") == "d"
    assert kept.of("Q4_0", one, 1 << 40, lambda: "e") == "d"
    assert kept.of("Q4_0", other, 1 << 40, lambda: "f") is None


def test_rows_are_known_by_where_they_were_taken_from() -> None:
    kept, w, numbers = Kept(100), of_file(3), np.array([2, 0])
    rows = w[0, numbers]
    kept.take_from(rows, w, numbers)
    assert kept.origin("Q4_0", rows) is None  # nothing is kept of these weights
    kept.of("Q4_0", w, 60, lambda: "whole")
    whole, found = kept.origin("Q4_0", rows) or ("", None)
    assert whole == "whole"
    assert found is numbers
    assert kept.origin("Q4_1", rows) is None
    assert kept.origin("Q4_0", rows.copy()) is None


def test_a_column_of_blocks_is_not_the_first_row() -> None:
    """Both begin at the same address and have the same shape."""
    kept, raw = Kept(100), np.arange(64, dtype=np.uint8)
    raw.flags.writeable = False
    column, row = raw.reshape(8, 8)[:, :4], raw[:32].reshape(8, 4)
    assert kept.of("Q4_0", column, 10, lambda: "column") == "column"
    assert kept.of("Q4_0", row, 10, lambda: "row") == "row"
    assert kept.of("Q4_0", column, 10, lambda: "again") == "column"


@pytest.mark.parametrize(("rows", "reads", "products"), [(4096, 160, 40), (200, 10, 10)])
def test_products_are_checked_where_each_follows_a_reading(rows: int, reads: int, products: int) -> None:
    """As where there is no room to keep what was read."""
    checked, found = CheckedRows(0), {True: 0, False: 0}
    for turn in range(320):
        read = turn % 2 == 0
        found[read] += bool(len(checked.sample(rows, read)))
    assert found == {True: reads, False: products}
