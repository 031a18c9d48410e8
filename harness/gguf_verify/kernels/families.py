"""A family of kernels under one name: the fastest of them for each product, by type, shape and card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..formats import BlockFormat, WeightFormat
from ..hosts.base import Host
from ..support.errors import UsageError
from ..support.paths import kernel_root
from .packed import MULTIPROCESSORS, SPLIT
from .shipped import KERNELS, LEGACY, KernelSpec, ShippedKernel

#: A product to choose for: type, M, N, K, and the card's compute capability, None on the CPU host.
Chooser = Callable[[WeightFormat, int, int, int, int | None], str]

#: Tokens up to which reading the weights is what a product costs.
FEW = 8


def _q8_1(fmt: WeightFormat, m: int, n: int, k: int, sm: int | None) -> str:
    if sm is None:  # the CPU emulates what tensor cores and barriers do
        return "q8_1_dp4a"
    if fmt.name not in LEGACY:
        return "q8_1_dp4a" if m <= FEW else "q8_1_dp4a_tiled"
    if m <= FEW:
        return "q8_1_gemv"
    if sm != 90:
        return "q8_1_mma"
    tiles = -(-n // 256) * -(-m // 64)  # of 07
    return "q8_1_split_k" if k > SPLIT and 2 * tiles < MULTIPROCESSORS else "q8_1_wgmma"


def _f32(fmt: WeightFormat, m: int, n: int, k: int, sm: int | None) -> str:
    if sm is None:
        return "f32_naive"
    return "f32_tiled" if m <= 2 * FEW else "f32_vectorized"


@dataclass(frozen=True)
class Family:
    """Kernels of one semantics.

    Args:
        name: what `--kernel` takes, the semantics' own.
        title: one phrase for listings.
        choose: the name of the fastest for a product.
    """

    name: str
    title: str
    choose: Chooser

    @property
    def members(self) -> list[KernelSpec]:
        return [spec for spec in KERNELS.values() if spec.semantics == self.name]

    def on(self, host: Host) -> ShippedKernel:
        """What stands for its kernels there."""
        return FamilyKernel(self, host)


#: On Hopper the choices of `q8_1` for blocks of 32 are those of measurements on an H200, which scripts/bench_kernels.py
#: repeats (it says where another kernel was faster); the others follow from what a card's instructions allow and from
#: the ladder at M = 512, and were not measured shape by shape.
FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family("q8_1", "the fastest q8_1 kernel for each product", _q8_1),
        Family("f32", "the fastest f32 kernel for each product", _f32),
    )
}
DEFAULT_KERNEL = "q8_1"


class FamilyKernel(ShippedKernel):
    """Stands for whichever kernel of a family multiplies; `of` says which. It multiplies nothing itself.

    Args:
        family: which kernels.
        host: where they run.
        root: the folder of their sources.
    """

    def __init__(self, family: Family, host: Host, root: Path | None = None) -> None:
        super().__init__(family.members[0], host, root or kernel_root())
        self.family = family

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def order_in_words(self) -> str:
        return "of the kernel that is chosen"

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        """The member for such weights and shape."""
        if not isinstance(fmt, BlockFormat):
            return super().of(fmt, m, n, k)
        sm = None if self.host.sm is None else int(self.host.sm)
        return ShippedKernel(KERNELS[self.family.choose(fmt, m, n, k, sm)], self.host, self.root)


def find_kernel(name: str) -> KernelSpec | Family:
    """The shipped kernel, or family, of this name. Raises UsageError, naming those that there are."""
    found = FAMILIES.get(name) or KERNELS.get(name)
    if found is None:
        raise UsageError(f"no kernel is called {name!r}; there are: {', '.join([*FAMILIES, *KERNELS])}")
    return found
