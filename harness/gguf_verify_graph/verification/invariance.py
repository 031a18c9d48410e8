"""Check whether a token's output depends on the number of tokens computed with it, or on its place among them.

The prompt is evaluated in micro-batches of several sizes; or in several slots, that is as another sequence of the same
cache, and next to another sequence. Reported is the first node of the graph at which a token's bits differ from those
in the first size, or in the first slot alone. A difference is no error if the definition leaves the order of a sum
open: both outputs are then within the bound. It tells where, and from which size on, a model's answers begin to vary.

Next to another sequence, the cells of a cache hold other keys too. So outputs with a value for each cell (scores, and
what is computed from them) are not compared, but sums over the cells are.
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

#: Bytes per token digest.
_DIGEST = 8


class Invariance:
    """Digests of each node's output for each token in the first evaluation, and the differences in later ones.

    Args:
        enabled: whether whole graphs are evaluated in several ways; if not, nothing is compared.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
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
        """One record for each evaluation but the first."""
        return tuple(self._found)

    def begin(self, micro: int, tokens: int, ahead: int = 0, slot: str = "", shared: bool = False) -> None:
        """Begin an evaluation of the prompt in micro-batches of this size.

        Args:
            tokens: number of tokens in the batch.
            ahead: number of tokens before the prompt's in the same micro-batch.
            slot: the placement in words; "" for the first slot, alone.
            shared: whether another sequence is evaluated too.
        """
        if not self._enabled:
            return
        self._micro, self._tokens, self._ahead, self._slot = min(micro, tokens), tokens, ahead, slot
        self._shared, self._caches, self._over_cells = shared, set(), set()
        self._evaluations += 1
        self._reference = self._reference or self._micro
        self._at, self._differs, self._compared, self._opening = -self._micro, False, 0, ""
        self._seen = {}

    def note(self, given: GraphNode) -> None:
        """Record a computed node."""
        if not self._micro:
            return
        if not self._opening:
            self._opening = given.name
        if given.name == self._opening:  # the graph starts again, for the next tokens
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
                    self._record(named_by_type(given.node), given.name, given.device, self._at + i)
                    return

    def _is_over_cells(self, node: Node) -> bool:
        """Return whether an output has a value for each cell of a cache along its fastest axis."""
        names = [None if s is None else s.name for s in node.sources]
        if node.op == "SET_ROWS" and node.view_of is not None:
            self._caches.add(names[node.view_of] or "")
        over = [s for s in node.sources if s is not None and s.name in self._over_cells]
        if node.op in ("MUL_MAT", "MUL_MAT_ID"):
            # products of a cache's keys and queries, not of scores and a cache's values
            found = names[0] in self._caches and not over
        else:
            found = any(s.ne[0] == node.output.ne[0] for s in over)
        if found:
            self._over_cells.add(node.output.name)
        return found

    def end(self) -> None:
        """End the evaluation of the prompt."""
        if self._micro and self._evaluations > 1 and not self._differs:
            self._record("", "", "", -1)
        self._micro = 0

    def _record(self, operation: str, node: str, device: str, token: int) -> None:
        """Record the first difference of an evaluation, or that there is none."""
        self._found.append(
            Varying(
                micro_batch=self._micro,
                against=self._reference,
                operation=operation,
                node=printable(node, 100),
                device=printable(device, 100),
                token=token,
                compared=self._compared,
                slot=self._slot,
            )
        )


def _by_token(node: Node, tokens: int) -> list[bytes]:
    """Return a digest of each token's part of an output.

    The tokens are the only axis, except the fastest, with that many indices, or two axes: sequences and their tokens.
    Empty for an output with no such axis or several, and for a view of a cache.
    """
    data = node.output.data
    if tokens not in data.shape[:3] and data.shape[0] == 1 and data.shape[1] * data.shape[2] == tokens:
        data = data.reshape(1, 1, tokens, -1)
    axes = [axis for axis in range(3) if data.shape[axis] == tokens]
    if node.view_of is not None or not axes:
        return []
    if tokens == 1:  # the whole output is the token's, whichever axis it is
        return [_digest(data)]
    return [_digest(part) for part in np.moveaxis(data, axes[0], 0)] if len(axes) == 1 else []


def _digest(part: Array) -> bytes:
    """Return the digest followed by the size: scores over more keys are not comparable."""
    raw = np.ascontiguousarray(part).tobytes()
    return hashlib.blake2b(raw, digest_size=_DIGEST).digest() + b"%d" % len(raw)
