"""Kernel specs: the records that the modules of `kernels/ladder/` define, one for each step of the ladder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..formats.tensor_types import WeightFormat
from ..hosts.base import Host
from ..semantics.definition import Semantics
from ..semantics.definitions import SEMANTICS
from ..semantics.definitions.q8_1 import Q8_1_RAW
from ..semantics.encodings.values import FLOAT16
from ..semantics.order import Order
from .launch import THREAD_AN_OUTPUT, Launch
from .site import ANY_CARD, Cards, Site

#: The most tokens for which the time of a product is that of reading its weights.
FEW = 8


@dataclass(frozen=True)
class Problem:
    """A product to choose a kernel for.

    Args:
        fmt: the weights' type.
        m, n, k: tokens, rows, columns.
        sm: compute capability of the GPU, e.g. 90; None on the CPU host, which emulates barriers and tensor cores.
    """

    fmt: WeightFormat
    m: int
    n: int
    k: int
    sm: int | None

    @property
    def on_gpu(self) -> bool:
        """Return whether it is computed on a GPU."""
        return self.sm is not None


def never(problem: Problem) -> bool:
    """Return False: for kernels that are the fastest for no product."""
    return False


@dataclass(frozen=True)
class KernelSpec:
    """One GEMM of `kernels/gemm`: a step of the ladder.

    Args:
        name: the name for `--kernel`.
        file: the source, below `kernels/`. The ladder is ordered by file name.
        semantics: the definition of the product that it declares (`gguf_verify.semantics`); also the name of its
            family.
        order: the order in which it adds the terms of an output, which determines its bits; None: not declared.
        title: a short description for listings.
        launch: how it gets its weights and is run.
        formats: names of the quantized types that it covers; None for all.
        cards: the GPUs that it supports.
        defines: macros to compile it with, in addition to the type's.
        fastest: whether its family chooses it for a product that it covers and that no later step of the ladder claims.
        declares: the definition, if it is not the one of that name in SEMANTICS.

    Raises ValueError if no shipped quantizer makes the activations of that definition.
    """

    name: str
    file: str
    semantics: str
    order: Order | None
    title: str
    launch: Launch = THREAD_AN_OUTPUT
    formats: frozenset[str] | None = None
    cards: Cards = ANY_CARD
    defines: dict[str, str] = field(default_factory=dict)
    fastest: Callable[[Problem], bool] = never
    declares: Semantics | None = None

    def __post_init__(self) -> None:
        if self.definition.encode not in (None, Q8_1_RAW.encode):
            raise ValueError(f"kernel {self.name}: no shipped quantizer makes the activations of {self.semantics}")

    @property
    def definition(self) -> Semantics:
        """The definition of the product that it declares."""
        return self.declares or SEMANTICS[self.semantics]

    def covers(self, fmt: WeightFormat) -> bool:
        """Return whether it multiplies weights of this type."""
        return self.formats is None or fmt.name in self.formats

    def computes(self, problem: Problem) -> bool:
        """Return whether it covers the problem's type and runs on its GPU."""
        runs = problem.sm is None or self.cards.target(str(problem.sm)) is not None
        return runs and self.covers(problem.fmt)

    def defines_for(self, fmt: WeightFormat) -> dict[str, str]:
        """Return the macros to compile it with for weights of this type."""
        return {**fmt.macros, **self.defines}

    def site(self, host: Host, root: Path, older: bool = False) -> Site:
        """Return the environment of its launches on a host; `older`: compiled as for a GPU before sm_90."""
        encoding = self.definition.encoding

        def macros(fmt: WeightFormat) -> dict[str, str]:
            return {**self.defines_for(fmt), **({"BEFORE_SM_90": "1"} if older else {})}

        return Site(host, root, self.name, self.file, self.cards, macros, encoding.quantizes, encoding is FLOAT16)
