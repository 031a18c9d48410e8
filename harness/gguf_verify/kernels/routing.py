"""Routing of tokens to experts in a mixture of experts, in the lists that engines pass to their kernels.

Token m is routed to the experts ids[m, 0] … ids[m, top_k - 1]. The pair (m, t) is a *slot*, and m·top_k + t its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

#: The expert number of blocks past the end of the padded list, which a kernel must not read.
NO_EXPERT = -1


def padded_slots(m: int, top_k: int, experts: int, block_m: int) -> int:
    """Return the length of `sorted_token_ids`: a multiple of block_m, enough for every routing of that many slots.

    Each expert with a slot is padded by at most block_m - 1, and at most as many experts as slots have one.
    """
    slots = m * top_k
    most = min(slots * block_m, slots + experts * (block_m - 1))
    return -(-most // block_m) * block_m


@dataclass(frozen=True)
class Routing:
    """The experts of each token.

    Args:
        ids: int32[M, top_k], each at least 0 and less than `experts`. A token may have an expert twice.
        experts: number of experts.

    Raises ValueError if an id is out of range.
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
        """Number of slots of each expert, int64[E]."""
        return np.bincount(self.ids.reshape(-1), minlength=self.experts)

    def sorted_slots(self) -> Ids:
        """Slot numbers sorted by expert, then by number: int32[M·top_k]."""
        return np.argsort(self.ids.reshape(-1), kind="stable").astype(np.int32)

    def offsets(self) -> Ids:
        """The start of each expert in `sorted_slots`, and the end: int32[E + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)

    def aligned(self, block_m: int) -> tuple[Ids, Ids, Ids]:
        """Return the lists of vLLM's `moe_align_block_size`, which SGLang and other engines share.

        Returns:
            sorted_token_ids: int32[`padded_slots`], the slots of each expert, padded to a multiple of block_m with the
                number M·top_k, which is no slot; the rest holds that number too.
            expert_ids: int32[`padded_slots` / block_m], the expert of each block of block_m slots; NO_EXPERT after the
                last.
            num_tokens_post_padded: int32[1], the used length of the first list.
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
        """Return every list, keyed by its name in declarations.

        With block_m = 1 `sorted_token_ids` has no padding, and `expert_offsets` says where each expert begins in it.
        """
        slots, blocks, used = self.aligned(block_m)
        return dict(zip(LISTS, (self.ids, slots, blocks, used, self.offsets()), strict=True))


#: The keys of `Routing.operands`.
LISTS = ("ids", "sorted_token_ids", "expert_ids", "num_tokens_post_padded", "expert_offsets")

Drawn = Callable[[np.random.Generator, int, int, int], Ids]


def _distinct(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Route like a router: different experts in a token, the most probable first."""
    found = np.argsort(rng.random((m, experts)), axis=1)[:, :top_k].astype(np.int32)
    return found if top_k <= experts else rng.integers(0, experts, (m, top_k)).astype(np.int32)


def _one(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Route all tokens to the same experts."""
    return np.repeat(_distinct(rng, 1, top_k, experts), m, axis=0)


def _some_idle(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Route nothing to the first, the last and every third expert, if there are enough experts."""
    busy = np.array([e for e in range(1, experts - 1) if e % 3])
    return busy[_distinct(rng, m, top_k, len(busy))].astype(np.int32) if len(busy) else _one(rng, m, top_k, experts)


def _twice(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Route every token to one expert in all of its slots."""
    return np.repeat(rng.integers(0, experts, (m, 1)), top_k, axis=1).astype(np.int32)


def _any(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Route any expert to any slot: some tokens have one twice."""
    return rng.integers(0, experts, (m, top_k)).astype(np.int32)


def _descending(rng: np.random.Generator, m: int, top_k: int, experts: int) -> Ids:
    """Route in descending order, from slot to slot and from token to token."""
    return np.sort(_distinct(rng, m, top_k, experts).reshape(-1))[::-1].reshape(m, top_k).copy()


#: Kinds of routings, keyed by their description.
ROUTINGS: dict[str, Drawn] = {
    "different experts in a token": _distinct,
    "the same experts for all tokens": _one,
    "experts without tokens": _some_idle,
    "one expert in all slots of a token": _twice,
    "any expert in any slot": _any,
    "experts in descending order": _descending,
}


def routed(how: str, m: int, top_k: int, experts: int, seed: int) -> Routing:
    """Return a random routing of one of the kinds in ROUTINGS. Raises KeyError for another kind."""
    return Routing(ROUTINGS[how](np.random.default_rng(seed), m, top_k, experts), experts)
