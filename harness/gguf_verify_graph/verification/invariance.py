"""Does a token's output depend on how many tokens are computed with it, and where it stands among them?

The prompt is evaluated in micro-batches of several sizes; or in several slots, that is as another sequence of the same
cache, and beside another sequence. The first node of the graph, in its order, at which a token has other bits than in
the first size, or in the first slot alone, is told. A difference is no mistake where the definition leaves the order of
a sum open: then both outputs are judged right. It tells where, and from which size on, a model's answers begin to vary.

Beside another sequence the cells of a cache hold other keys, too, so outputs with a value for each cell (scores, and
what is made of them) are not compared, but what is summed up over the cells is.
"""

from __future__ import annotations

import hashlib

import numpy as np

from gguf_verify.backend_results import Varying
from gguf_verify.llama.graph import GraphNode
from gguf_verify.llama.node import Array
from gguf_verify.support.text import printable

from ..operations import Node
from .tally import named_by_type

#: Bytes of a token's digest.
_DIGEST = 8


class Invariance:
    """The outputs of each node and token in the first evaluation, as digests, and what differs in the others.

    Args:
        asked: whether whole graphs are evaluated in several ways; if not, nothing is compared.
    """

    def __init__(self, asked: bool) -> None:
        self._asked = asked
        self._first: dict[tuple[str, int, int], bytes] = {}
        self._found: list[Varying] = []
        self._micro, self._tokens, self._reference = 0, 0, 0
        self._at, self._differs, self._compared, self._ahead, self._evaluations = 0, False, 0, 0, 0
        self._slot, self._shared = "", False
        self._caches: set[str] = set()
        self._over_cells: set[str] = set()
        self._seen: dict[str, int] = {}
        self._opening = ""

    @property
    def found(self) -> tuple[Varying, ...]:
        """One for each evaluation but the first."""
        return tuple(self._found)

    def begin(self, micro: int, tokens: int, ahead: int = 0, slot: str = "", shared: bool = False) -> None:
        """A prompt is evaluated in micro-batches of this size.

        Args:
            tokens: of the batch.
            ahead: how many of them stand before the prompt's, in one micro-batch with it.
            slot: how it stands there, in words; "" for the first slot, alone.
            shared: with another sequence.
        """
        if not self._asked:
            return
        self._micro, self._tokens, self._ahead, self._slot = min(micro, tokens), tokens, ahead, slot
        self._shared, self._caches, self._over_cells = shared, set(), set()
        self._evaluations += 1
        self._reference = self._reference or self._micro
        self._at, self._differs, self._compared, self._opening = -self._micro, False, 0, ""
        self._seen = {}

    def note(self, given: GraphNode) -> None:
        """A node of it was computed."""
        if not self._micro:
            return
        if not self._opening:
            self._opening = given.name
        if given.name == self._opening:  # the graph begins anew, for the next tokens
            self._at, self._seen = self._at + self._micro, {}
        self._seen[given.name] = occurrence = self._seen.get(given.name, 0) + 1
        if given.node is None or self._differs or (self._shared and self._is_over_cells(given.node)):
            return
        digests = _by_token(given.node, min(self._micro, self._tokens - self._at))
        for i, digest in enumerate(digests[self._ahead :]):
            key = given.name, occurrence, self._at + i
            if self._evaluations == 1:
                self._first[key] = digest
            elif key in self._first and self._first[key][_DIGEST:] == digest[_DIGEST:]:
                self._compared += 1
                if self._first[key] != digest:
                    self._differs = True
                    self._tell(given, self._at + i)
                    return

    def _is_over_cells(self, node: Node) -> bool:
        """Whether an output has a value for each cell of a cache along its fastest axis."""
        names = [None if s is None else s.name for s in node.sources]
        if node.op == "SET_ROWS" and node.view_of is not None:
            self._caches.add(names[node.view_of] or "")
        over = [s for s in node.sources if s is not None and s.name in self._over_cells]
        if node.op in ("MUL_MAT", "MUL_MAT_ID"):  # of a cache's keys and queries; not of scores and a cache's values
            found = names[0] in self._caches and not over
        else:
            found = any(s.ne[0] == node.output.ne[0] for s in over)
        if found:
            self._over_cells.add(node.output.name)
        return found

    def _tell(self, given: GraphNode, token: int) -> None:
        assert given.node is not None
        self._found.append(
            Varying(
                micro_batch=self._micro, against=self._reference, operation=named_by_type(given.node),
                node=printable(given.name, 100), device=printable(given.device, 100), token=token,
                compared=self._compared, slot=self._slot,
            )
        )  # fmt: skip

    def end(self) -> None:
        """The prompt was evaluated."""
        if self._micro and self._evaluations > 1 and not self._differs:
            self._found.append(
                Varying(
                    micro_batch=self._micro, against=self._reference, operation="", node="", device="", token=-1,
                    compared=self._compared, slot=self._slot,
                )
            )  # fmt: skip
        self._micro = 0


def _by_token(node: Node, tokens: int) -> list[bytes]:
    """A digest of each token's part of an output: along the one axis, but the fastest, that has as many indices, or
    along two, sequences and their tokens. None of an output without such an axis, or with several, nor of one that is a
    view of a cache."""
    data = node.output.data
    if tokens not in data.shape[:3] and data.shape[0] == 1 and data.shape[1] * data.shape[2] == tokens:
        data = data.reshape(1, 1, tokens, -1)
    axes = [axis for axis in range(3) if data.shape[axis] == tokens]
    if node.view_of is not None or not axes:
        return []
    if tokens == 1:  # several axes may have one index, and the whole output is the token's whichever it is
        return [_digest(data)]
    return [_digest(part) for part in np.moveaxis(data, axes[0], 0)] if len(axes) == 1 else []


def _digest(part: Array) -> bytes:
    """The digest, behind it the size: scores of more keys are no others."""
    raw = np.ascontiguousarray(part).tobytes()
    return hashlib.blake2b(raw, digest_size=_DIGEST).digest() + b"%d" % len(raw)
