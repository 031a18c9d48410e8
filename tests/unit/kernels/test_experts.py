"""Routings in the lists that engines use, and products as calls of a kernel for experts: no wrong slot is hidden."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.experts import Embedded, embedded, experts_of
from gguf_verify.kernels.routing import NO_EXPERT, ROUTINGS, Routing, padded_slots, routed
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.sums import Product
from tests.support.fused import Bytes, Floats, multiplied, weights

FMT = FORMATS["Q4_0"]
N, K = 29, 96

#: (weights of all experts, activations, the call) → float32[M, top_k, N].
Kernel = Callable[[Bytes, Floats, Embedded], Floats]


def activations(m: int) -> Floats:
    return np.random.default_rng(m).standard_normal((m, K)).astype(np.float32)


def answered(
    stacked: Bytes, x: Floats, call: Embedded, wrong: Callable[[int, int], int] = lambda e, _: e, rows: int = 0
) -> Floats:
    """Right, unless `wrong` (expert, slot) → another expert; `rows`: it begins so many rows too late."""
    m, top_k = call.routing.ids.shape
    experts = np.concatenate([stacked, stacked]).reshape(-1, stacked.shape[1])
    y = np.empty((m, top_k, call.experts.n), np.float32)
    for i in range(m):
        for t in range(top_k):
            e = wrong(int(call.routing.ids[i, t]), t) % call.experts.count
            own = experts[e * call.experts.n + rows :][: call.experts.n]
            at = i * top_k + t if call.own_activations else i
            y[i, t] = multiplied(FMT, np.ascontiguousarray(own), x[at : at + 1])[0]
    return y


def by_sorted_list(stacked: Bytes, x: Floats, call: Embedded, block: int = 4, rounded: str = "up") -> Floats:
    """As vLLM's moe_a8 does, from the padded lists; `rounded` down, the last block of an expert is forgotten."""
    m, top_k = call.routing.ids.shape
    slots, experts, used = call.routing.aligned(block)
    y = np.full((m * top_k, call.experts.n), np.nan, np.float32)
    for b in range(int(used[0]) // block):
        e = experts[b]
        own = stacked[e * call.experts.n : (e + 1) * call.experts.n]
        of_block = slots[b * block : (b + 1) * block]
        if rounded == "down" and (of_block == m * top_k).any():
            continue
        for slot in of_block[of_block < m * top_k]:
            at = slot if call.own_activations else slot // top_k
            y[slot] = multiplied(FMT, np.ascontiguousarray(own), x[at : at + 1])[0]
    return y.reshape(m, top_k, -1)


def dropping_duplicates(stacked: Bytes, x: Floats, call: Embedded) -> Floats:
    """Of an expert that a token names twice, only the first slot is answered."""
    y = answered(stacked, x, call)
    ids = call.routing.ids
    for t in range(1, ids.shape[1]):
        y[(ids[:, :t] == ids[:, t : t + 1]).any(axis=1), t] = 0
    return y


WRONG: dict[str, Kernel] = {
    "the next expert": lambda w, x, c: answered(w, x, c, lambda e, _: e + 1),
    "the next expert in the last slot": lambda w, x, c: answered(w, x, c, lambda e, t: e + (t == 1)),
    "expert 0 always": lambda w, x, c: answered(w, x, c, lambda e, _: 0),
    "rows of the next expert": lambda w, x, c: answered(w, x, c, rows=1),
    "the last block of an expert left out": lambda w, x, c: by_sorted_list(w, x, c, rounded="down"),
    "slots swapped": lambda w, x, c: answered(w, x, c)[:, ::-1],
    "one number": lambda w, x, c: np.where(np.arange(N) == 7, 1.001, 1) * answered(w, x, c) * np.array([[[1.0], [1]]]),
    "one element of one slot": lambda w, x, c: one_element(answered(w, x, c)),
}  # fmt: skip


def one_element(y: Floats) -> Floats:
    y[2, 1, 3] *= np.float32(1.01)
    return y


def plain(kernel: Kernel, m: int, own: bool = False, top_k: int = 2, experts: int = 4) -> tuple[Floats, Product]:
    """What a kernel's call gives as a product, and what it should be."""
    w, x = weights(FMT, N, K), activations(m)
    encoded = x.view(np.uint8)
    of = experts_of(w, experts)
    call = embedded(of, encoded, top_k, own)
    given = np.ascontiguousarray(call.activations(encoded)).view(np.float32)
    assert given.shape == ((m * top_k if own else m), K)

    def expected(tokens: np.ndarray, rows: np.ndarray) -> Product:
        return product(F32, FMT, w[rows], np.ascontiguousarray(encoded[tokens]))

    y = kernel(of.stacked(w), given, call).astype(np.float32)
    return call.plain(y[None], expected), product(F32, FMT, w, encoded)


@pytest.mark.parametrize("own", [False, True], ids=["a token's activations", "a slot's activations"])
@pytest.mark.parametrize("kernel", [answered, by_sorted_list], ids=["by ids", "by the sorted list"])
def test_right_kernels(kernel: Kernel, own: bool) -> None:
    for m, top_k, experts in ((1, 1, 1), (1, 2, 4), (7, 2, 4), (7, 3, 5), (33, 1, 4), (2, 3, 2)):
        y, p = plain(kernel, m, own, top_k, experts)
        assert judge(y, p).passed
        np.testing.assert_array_equal(y, multiplied(FMT, weights(FMT, N, K), activations(m)))


@pytest.mark.parametrize("own", [False, True], ids=["a token's activations", "a slot's activations"])
@pytest.mark.parametrize("which", WRONG)
def test_wrong_kernels(which: str, own: bool) -> None:
    y, p = plain(WRONG[which], 7, own)
    assert not judge(y, p).passed


def test_slots_that_read_the_first_slots_activations() -> None:
    def first(w: Bytes, x: Floats, call: Embedded) -> Floats:
        return answered(w, np.repeat(x[::2], 2, axis=0), call)

    y, p = plain(first, 7, own=True)
    assert not judge(y, p).passed


def test_the_worst_slot_is_the_answer() -> None:
    """Of slots that rounding tells apart, and of those that are wrong, NaN or without the declared bits."""
    w, x = weights(FMT, N, K), activations(3).view(np.uint8)
    of = experts_of(w)
    call = embedded(of, x, 3)
    right = answered(of.stacked(w), x.view(np.float32), call)
    asked: list[tuple[int, int]] = []

    def expected(tokens: np.ndarray, rows: np.ndarray) -> Product:
        asked.append((len(tokens), len(rows)))
        return product(F32, FMT, w[rows], np.ascontiguousarray(x[tokens]), ASCENDING)

    call.plain(right[None], expected)
    assert not asked, "where all slots agree, nothing is computed"
    for at, value in (((0, 0, 5), np.nan), ((1, 2, 7), np.inf), ((2, 1, 0), 0.0)):
        wrong = right.copy()
        wrong[at] = value
        made, same = call.plain(wrong[None], expected), call.plain(right[None], expected)
        assert asked.pop() == (1, 1)
        different = ~((made == same) | (np.isnan(made) & np.isnan(same)))
        assert different.sum() == 1
        assert made[different][0] == value or (np.isnan(value) and np.isnan(made[different][0]))


def test_bits_of_a_declared_order_are_required_of_every_slot() -> None:
    w, x = weights(FMT, N, K), activations(3).view(np.uint8)
    of = experts_of(w)
    call = embedded(of, x, 2)
    p = product(F32, FMT, w, x, ASCENDING)
    assert p.ordered is not None
    token, row = 1, int(np.argmax(np.abs(p.ordered[1] - p.exact[1]) > 0))
    slots = np.stack([p.ordered, p.ordered])
    # nearer to the exact value than the declared order's bits
    slots[1, token, row] = np.nextafter(p.ordered[token, row], np.float32(p.exact[token, row]))
    y = np.empty((3, 2, N), np.float32)
    for t in range(2):
        at = (np.arange(N) + of.shifts[call.routing.ids[:, t]][:, None]) % N
        y[:, t] = np.take_along_axis(slots[t], at, axis=1)

    def expected(tokens: np.ndarray, rows: np.ndarray) -> Product:
        return product(F32, FMT, w[rows], np.ascontiguousarray(x[tokens]), ASCENDING)

    made = call.plain(y[None], expected)
    assert made[token, row] == slots[1, token, row] != p.ordered[token, row]


def test_experts_are_different_matrices_of_the_same_rows() -> None:
    for n in (1, 2, 6, 29, 64):
        w = weights(FMT, n, 64)
        of = experts_of(w, 4)
        assert len(set(of.shifts)) == min(n, 4)
        for e in range(4):
            one = of.stacked(w).reshape(4, n, -1)[e]
            assert {row.tobytes() for row in one} == {row.tobytes() for row in w}
            np.testing.assert_array_equal(np.roll(one, of.shifts[e], axis=0), w)


@pytest.mark.parametrize("how", ROUTINGS)
def test_routings(how: str) -> None:
    for m, top_k, experts in ((1, 1, 1), (3, 2, 8), (129, 8, 64), (5, 8, 4), (17, 2, 3)):
        routing = routed(how, m, top_k, experts, 1)
        assert routing.ids.shape == (m, top_k)
        assert routing.ids.dtype == np.int32
        for block in (1, 4, 16):
            slots, of, used = routing.aligned(block)
            assert len(slots) == padded_slots(m, top_k, experts, block) == len(of) * block
            assert used[0] % block == 0
            assert used[0] <= len(slots)
            real = slots < m * top_k
            assert sorted(slots[real]) == list(range(m * top_k))
            assert (slots[~real] == m * top_k).all()
            assert not real[used[0] :].any()
            assert (of[used[0] // block :] == NO_EXPERT).all()
            np.testing.assert_array_equal(routing.ids.reshape(-1)[slots[real]], np.repeat(of, block)[real])
            assert (np.diff(of[: used[0] // block]) >= 0).all()
        offsets = routing.offsets()
        for e in range(experts):
            own = routing.sorted_slots()[offsets[e] : offsets[e + 1]]
            assert (routing.ids.reshape(-1)[own] == e).all()
        assert offsets[-1] == m * top_k


def test_an_aligned_list_by_hand() -> None:
    """Three tokens of two experts of four, in blocks of two."""
    routing = Routing(np.array([[2, 0], [2, 3], [0, 2]], np.int32), 4)
    slots, of, used = routing.aligned(2)
    assert slots.tolist() == [1, 4, 0, 2, 5, 6, 3, 6, 6, 6]
    assert of.tolist() == [0, 2, 2, 3, NO_EXPERT]
    assert used.tolist() == [8]
    assert routing.operands(2).keys() == {
        "ids", "sorted_token_ids", "expert_ids", "num_tokens_post_padded", "expert_offsets"
    }  # fmt: skip


def test_what_the_routings_are_called() -> None:
    idle = routed("experts without tokens", 60, 2, 8, 1)
    assert idle.counts[0] == idle.counts[-1] == 0
    assert (routed("one expert in all slots of a token", 9, 4, 8, 1).ids.std(axis=1) == 0).all()
    assert len(np.unique(routed("the same experts for all tokens", 9, 2, 8, 1).ids, axis=0)) == 1
    assert all(len(set(row)) == 4 for row in routed("different experts in a token", 9, 4, 8, 1).ids)
    with pytest.raises(ValueError, match="numbers of 3 experts"):
        Routing(np.array([[3]], np.int32), 3)


def test_duplicates_show_in_a_routing_that_has_them() -> None:
    w, x = weights(FMT, 3 * N, K), activations(9)
    of = experts_of(w[:N], 3)
    routing = routed("one expert in all slots of a token", 9, 2, 3, 1)
    call = Embedded(of, routing, np.repeat(np.arange(9)[:, None], 2, axis=1), False)
    stacked = of.stacked(w[:N])
    right, wrong = (kernel(stacked, x, call) for kernel in (answered, dropping_duplicates))
    p = product(F32, FMT, np.ascontiguousarray(w[:N]), x.view(np.uint8))

    def expected(tokens: np.ndarray, rows: np.ndarray) -> Product:
        at = np.ix_(tokens, rows)
        return Product(p.exact[at], p.bound[at], p.spread[at], None)

    assert judge(call.plain(right[None], expected), p).passed
    assert not judge(call.plain(wrong[None], expected), p).passed
