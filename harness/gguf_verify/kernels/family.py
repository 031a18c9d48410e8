"""Family: a group of kernels under one name, which picks the fastest for each product by type, shape and GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..formats.block import BlockFormat
from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..hosts.base import Host
from ..semantics.definition import Semantics
from ..support.paths import kernel_root
from .interface import Candidate
from .ladder import KERNELS
from .shipped import ShippedKernel, element_kernel
from .spec import KernelSpec, Problem


@dataclass(frozen=True)
class Family:
    """The kernels of one definition.

    Args:
        name: the name for `--kernel`: that of the definition.
        title: a short description for listings.
    """

    name: str
    title: str

    @property
    def members(self) -> list[KernelSpec]:
        """Return its kernels, in the order of the ladder."""
        return [spec for spec in KERNELS.values() if spec.semantics == self.name]

    def choose(self, problem: Problem) -> KernelSpec:
        """Return the last step of the ladder that can compute the problem and claims it; otherwise the first step."""
        claim = (spec for spec in reversed(self.members) if spec.computes(problem) and spec.fastest(problem))
        return next(claim, self.members[0])


class FamilyOnHost(Candidate):
    """A family of shipped kernels on a host. It multiplies nothing itself: `of` returns the kernel that does.

    Args:
        family: the family.
        host: where its kernels run.
        root: the folder of their sources.
    """

    def __init__(self, family: Family, host: Host, root: Path | None = None) -> None:
        self.family, self.host, self.root = family, host, root or kernel_root()

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def semantics(self) -> str:
        return self.family.members[0].semantics

    @property
    def definition(self) -> Semantics:
        return self.family.members[0].definition

    @property
    def order_in_words(self) -> str:
        return "of the kernel that is chosen"

    def is_under_test(self, fmt: WeightFormat) -> bool:
        return True  # a family has a kernel for every type, all of them its own

    def covers(self, fmt: WeightFormat) -> bool:
        return isinstance(fmt, ElementFormat) or any(spec.covers(fmt) for spec in self.family.members)

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        """The member for such weights and shape, or the kernel of a type that is not quantized."""
        if not isinstance(fmt, BlockFormat):
            return element_kernel(fmt, self.host, self.root)
        sm = None if self.host.sm is None else int(self.host.sm)
        return ShippedKernel(self.family.choose(Problem(fmt, m, n, k, sm)), self.host, self.root)
