"""Every kernel on a GPU at the edges of its shapes, for a process of its own under `compute-sanitizer`:

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m tests.support.gpu_sweep [ROOT [KERNEL …]]

Every buffer is an allocation of its own, so that a read past an input is seen; without guards, so is a write. The bits
must be those of the order that the kernel declares; of a kernel without one, every output must be within the bound.
ROOT is a copy of the kernels' folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FLOAT_TYPES, FORMATS
from gguf_verify.hosts.cupy_host import CupyHost
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.packed import LEGACY
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.semantics.elements import element_product
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.sums import Product
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import element_gemm, gaussians, random_elements, random_weights, usual_weights

#: M, N, blocks: one of each; odd numbers of blocks; past tiles of 16, 64 and 128; more blocks than a ring has stages.
SHAPES = [(1, 1, 1), (3, 31, 3), (17, 129, 2), (65, 257, 5), (7, 33, 40)]
#: Beside the five that every kernel covers: one of each way of K-quants.
MORE = ("Q2_K", "Q6_K")


def bare() -> CupyHost:
    """A host whose buffers are allocations of their own, without guards."""
    host = CupyHost()
    host.placement, host.fill = "alone", 0xA5
    return host


def expected(spec: KernelSpec, fmt: BlockFormat, w: npt.NDArray[np.uint8], x: npt.NDArray[np.float32]) -> Product:
    return product(spec.definition, fmt, w, spec.definition.bytes_of(x), spec.order)


def right(got: npt.NDArray[np.float32], want: Product) -> bool:
    """Whether outputs float32[M, N] have the bits of the declared order, or, where there is none, are in the bound."""
    return judge(got, want).passed if want.ordered is None else got.tobytes() == want.ordered.tobytes()


def sweep(host: CupyHost, root: Path, names: list[str]) -> int:
    """How many products were right. Raises SystemExit at the first that is not."""
    count = 0
    for spec in (KERNELS[name] for name in names):
        if spec.cards.target(str(host.sm)) is None:
            continue
        for fmt in (FORMATS[name] for name in (*sorted(LEGACY), *MORE)):
            if not spec.covers(fmt):
                continue
            kernel, rng = ShippedKernel(spec, host, root), np.random.default_rng(25)
            for m, n, blocks in SHAPES:
                k = blocks * fmt.block_size
                # halves overflow under large scales, and then nothing is left to judge
                w = usual_weights(fmt, n, k) if spec.order is None else random_weights(rng, fmt, n, k)
                x = gaussians(rng, m, k)
                weights, want = kernel.upload(fmt, w), expected(spec, fmt, w, x)
                for got in (kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x))):
                    if not right(got, want):
                        raise SystemExit(f"wrong: {spec.name} {fmt.name} M {m} N {n} K {k}")
                    count += 1
    return count


def elements(host: CupyHost) -> int:
    """The kernel of weights that are not quantized, likewise."""
    for kind in FLOAT_TYPES:
        rng = np.random.default_rng(26)
        w, x = random_elements(rng, kind, 31, 33), gaussians(rng, 3, 33)
        want = element_product(kind, w.view(np.uint8), x, order=ASCENDING).ordered
        if element_gemm(host, kind, w, x).tobytes() != np.asarray(want).tobytes():
            raise SystemExit(f"wrong bits: elements {kind}")
    return len(FLOAT_TYPES)


def main(arguments: list[str]) -> None:
    host = bare()
    root = Path(arguments[0]) if arguments else kernel_root()
    names = arguments[1:] or [spec.name for family in FAMILIES.values() for spec in family.members]
    count = sweep(host, root, names) + elements(host)
    print(f"{count} products are right")


if __name__ == "__main__":
    main(sys.argv[1:])
