"""Which experts multiply which tokens in a mixture of experts, in the lists that engines hand to their kernels.

A token m is sent to the experts ids[m, 0] … ids[m, top_k - 1]. The pair (m, t) is a *slot*, and m·top_k + t its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

#: The expert of thread blocks behind the padded list: a kernel has no business there.
NO_EXPERT = -1


def padded_slots(m: int, top_k: int, experts: int, block_m: int) -> int:
    """The length of `sorted_token_ids`: a multiple of block_m that holds every routing of so many slots.

    Each expert that gets a slot is padded by block_m - 1 at most, and no more experts than slots get one.
    """
    slots = m * top_k
    most = min(slots * block_m, slots + experts * (block_m - 1))
    return -(-most // block_m) * block_m


@dataclass(frozen=True)
class Routing:
    """The experts of each token.

    Args:
        ids: int32[M, top_k], each at least 0 and less than `experts`. An expert may occur twice in a token.
        experts: how many there are.

    Raises ValueError where an id is out of range.
    """

    ids: Ids
    experts: int

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or (self.ids.size and not 0 <= int(self.ids.min()) <= int(self.ids.max()) < self.experts):
            raise ValueError(f"ids[M, top_k] are numbers of {self.experts} experts")

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[1])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Slots of each expert, int64[E]."""
        return np.bincount(self.ids.reshape(-1), minlength=self.experts)

    def sorted_slots(self) -> Ids:
        """Numbers of slots by expert, and by number within an expert: int32[M·top_k]."""
        return np.argsort(self.ids.reshape(-1), kind="stable").astype(np.int32)

    def offsets(self) -> Ids:
        """Where each expert begins in `sorted_slots`, and the end: int32[E + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)

    def aligned(self, block_m: int) -> tuple[Ids, Ids, Ids]:
        """The lists that vLLM's `moe_align_block_size` makes, which SGLang and others share.

        Returns:
            sorted_token_ids: int32[`padded_slots`], the slots of each expert, filled up to a multiple of block_m with
                the number M·top_k, which is no slot; the rest holds that number too.
            expert_ids: int32[`padded_slots` / block_m], the expert of each block of block_m slots; NO_EXPERT behind.
            num_tokens_post_padded: int32[1], how much of the first list is used.
        """
        m, top_k = self.ids.shape
        length = padded_slots(m, top_k, self.experts, block_m)
        slots = np.full(length, m * top_k, np.int32)
        blocks = np.full(length // block_m, NO_EXPERT, np.int32)
        by_expert, offsets, at = self.sorted_slots(), self.offsets(), 0
        for expert in np.flatnonzero(self.counts):
            own = by_expert[offsets[expert] : offsets[expert + 1]]
            slots[at : at + len(own)] = own
            end = at + -(-len(own) // block_m) * block_m
            blocks[at // block_m : end // block_m] = expert
            at = end
        return slots, blocks, np.array([at], np.int32)

    def operands(self, block_m: int = 1) -> dict[str, Ids]:
        """Every list by the name that a declaration has for it.

        With block_m = 1 `sorted_token_ids` has no padding, and `expert_offsets` says where each expert begins in it.
        """
        slots, blocks, used = self.aligned(block_m)
        return dict(zip(LISTS, (self.ids, slots, blocks, used, self.offsets()), strict=True))


#: The names of what `Routing.operands` makes.
LISTS = ("ids", "sorted_token_ids", "expert_ids", "num_tokens_post_padded", "expert_offsets")

Drawn = Callable[[np.random.Generator, int, int, int], Ids]


def _distinct(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """As a router sends: different experts, the most probable first."""
    found = np.argsort(rng.random((m, experts)), axis=1)[:, :top_k].astype(np.int32)
    return found if top_k <= experts else rng.integers(0, experts, (m, top_k)).astype(np.int32)


def _one(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """All tokens have the same experts."""
    return np.repeat(_distinct(rng, 1, top_k, experts), m, axis=0)


def _some_idle(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """The first, the last and every third expert get nothing, as far as enough are left."""
    busy = np.array([e for e in range(1, experts - 1) if e % 3])
    return busy[_distinct(rng, m, top_k, len(busy))].astype(np.int32) if len(busy) else _one(rng, m, top_k, experts)


def _twice(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Every token has one expert in all of its slots."""
    return np.repeat(rng.integers(0, experts, (m, 1)), top_k, axis=1).astype(np.int32)


def _any(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Any expert in any slot: some tokens have one twice."""
    return rng.integers(0, experts, (m, top_k)).astype(np.int32)


def _descending(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """The last experts first, from slot to slot and from token to token."""
    return np.sort(_distinct(rng, m, top_k, experts).reshape(-1))[::-1].reshape(m, top_k).copy()


#: Ways in which tokens may be sent to experts, in words.
ROUTINGS: dict[str, Drawn] = {
    "different experts in a token": _distinct,
    "the same experts for all tokens": _one,
    "experts without tokens": _some_idle,
    "one expert in all slots of a token": _twice,
    "any expert in any slot": _any,
    "experts in descending order": _descending,
}


def routed(how: str, m: int, top_k: int, experts: int, seed: int) -> Routing:
    """A routing that is drawn in one of ROUTINGS' ways. Raises KeyError for another."""
    return Routing(ROUTINGS[how](np.random.default_rng(seed), m, top_k, experts), experts)
