"""Records of the calls of a kernel."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ..support.errors import UsageError

#: Kinds of calls: see `Call`.
CallKind = Literal[
    "block", "own", "shared", "other-m", "reference", "cut", "quantizer", "every-size", "probe", "schedule", "grid",
    "index", "graft", "routing", "tensor", "again",
]  # fmt: skip

#: The importance of a wrong call, the most important first: a product of the model, a bad access to memory at another
#: shape, a product of another shape, a launch past a limit.
OWN, MEMORY, OTHER_SHAPE, LIMIT = range(4)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the kernel. With its rung and its tensor, `--only-call` makes it again.

    Args:
        kind: "block": a block of K, in the blocks rung. "own", "shared": of the graph's product, on activations that
            the kernel quantizes itself, and on llama.cpp's activation bytes. "other-m": with other numbers of tokens.
            "reference": llama.cpp's own. "cut": with a row and a block fewer. "quantizer", "every-size": of the
            kernel's quantizer, the second with values of every size. "probe": of the probe plan. "schedule": under
            another schedule. "grid", "index": of launches that no host can run whole. "graft": of the tokens rung.
            "routing": of experts, by ids. "tensor": of a kernel that multiplies nothing, on the model's tensors.
            "again": as "other-m", made many times.
        number: of the block, the trial, the probe or the schedule; of a quantizer's call, one more than its trial's,
            and 0 on the graph's tokens; of a graft, its pass: 0 for (a), 1 for (b).
        given: activations are passed as bytes, if the kind has both forms.
        first_row: with which the matrix, or the part of it, begins in its tensor.
        use: how many products with that matrix came before in the rung, or grafts in the pass.
        m, n, k: tokens, rows, columns; 0 if not used.
    """

    kind: CallKind
    number: int = 0
    given: bool = False
    first_row: int = 0
    use: int = 0
    m: int = 0
    n: int = 0
    k: int = 0

    @property
    def rank(self) -> int:
        """The distance from the model's own products: 0 for these, 2 for other shapes, 3 for launches that no host can
        make whole."""
        if self.kind in ("grid", "index"):
            return LIMIT
        other = self.kind in ("other-m", "cut", "every-size", "probe", "routing")
        return OTHER_SHAPE if other or (self.kind == "quantizer" and self.number) else OWN

    @property
    def id(self) -> str:
        """As `--only-call` takes it: "probe,number=13,given=1,m=6,n=70,k=768"."""
        fields = msgspec.structs.asdict(self)
        return ",".join([self.kind, *(f"{name}={int(v)}" for name, v in fields.items() if name != "kind" and v)])

    def fits(self, graphs: tuple[int, int, int]) -> bool:
        """Whether its sizes are those of a product (M, N, K) of the graph, if its kind has them: `--only-call` must not
        make a call that this run would not make."""
        follows = {"own": 3, "shared": 3, "reference": 3, "other-m": 2, "again": 2}.get(self.kind, 0)
        sizes = zip((self.n, self.k, self.m), (*graphs[1:], graphs[0]), strict=True)
        return all(given in (0, there) for given, there in list(sizes)[:follows])

    @classmethod
    def parse(cls, text: str) -> Call:
        """The call of this `id`. Raises UsageError."""
        kind, _, rest = text.partition(",")
        fields: dict[str, object] = {"kind": kind}
        for part in rest.split(",") if rest else []:
            found = re.fullmatch(r"([a-z_]+)=([0-9]{1,18})", part)
            if found is None or found[1] in fields:
                raise UsageError(f"--only-call: {part[:40]!a} is not NAME=NUMBER; copy it from a report")
            fields[found[1]] = bool(int(found[2])) if found[1] == "given" else int(found[2])
        if unknown := [name for name in fields if name not in cls.__struct_fields__]:
            raise UsageError(f"--only-call: a call has no {unknown[0]}; copy it from a report")
        try:
            made = msgspec.convert(fields, cls)
        except msgspec.ValidationError:
            raise UsageError(f"--only-call: no kind of call is {kind[:40]!a}; copy it from a report") from None
        if made.kind in ("other-m", "again", "quantizer") and not made.m:
            raise UsageError(f"--only-call: a call of kind {made.kind} has m=NUMBER; copy it from a report")
        return made
