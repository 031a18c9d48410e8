"""CuPy arrays for exact products (`semantics.device`): memory, chunk sizes, and float32 without flushing.

cuBLAS multiplies float64 in IEEE 754 arithmetic, by DGEMM or by tensor cores of float64, unless a user enables
emulation by smaller numbers (`CUBLAS_EMULATE_DOUBLE_PRECISION`); then the sample that NumPy computes differs. Products
of float32 are those of integers below 2^24, which TF32 does not change either: no factor has more than 8 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..results.environment import HostInfo
from ..support.arrays import Array
from ..support.errors import EnvironmentFault, UsageError
from . import compiled_sums
from .kept import Kept
from .kinds import gpu

T = TypeVar("T")

#: Bytes that are held for a value of weights, and for another number, while a product is computed.
_OF_VALUE, _OF_NUMBER = 64, 8
#: The fraction of the GPU's free memory that this process may take, if CuPy has no limit; of that, the fraction and the
#: maximum for one chunk of a product. The rest is left to kernels, here and in other processes.
_OURS, _CHUNK, _MOST = 0.5, 0.25, 1 << 32
#: Of this process's memory, the fraction for weights that are cached from one product to the next.
_KEPT = 0.25
#: Rows that NumPy also computes: products below this number of rows, rows of a larger product, and the intervals of
#: smaller and larger products that are checked.
_FEW, _ROWS, _EACH, _EACH_LARGE = 256, 2, 16, 4


def fault_of_arrays() -> str | None:
    """Return why CuPy cannot compute with arrays here, or None if it can.

    Besides the requirements of kernels, it needs CUDA's headers and cuBLAS, which CuPy looks for at their first use.
    """
    fault = gpu.gpu_fault()
    if fault is not None:
        return fault
    import cupy

    try:
        cupy.matmul(cupy.ones((2, 2)), cupy.ones((2, 2))).sum().item()
    except Exception as error:  # any of CuPy's libraries may fail
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"CuPy lacks CUDA's libraries (pip install 'cupy-cuda13x[ctk]', or 'cupy-cuda12x[ctk]'): {said}"
    return None


class CupyArrays:
    """A GPU as a device of exact products. Raises EnvironmentFault if there is none.

    Args:
        seed: of the rows that NumPy computes, too.
    """

    def __init__(self, seed: int) -> None:
        import cupy

        from .cupy_host import CupyHost, room

        host = CupyHost()

        self._cupy, self._host, self._info = cupy, host, host.info()
        pool, ours = self._cupy.get_default_memory_pool(), room(cupy)
        if not pool.get_limit():
            ours = int(ours * _OURS)
            pool.set_limit(size=ours)
        self._chunk = min(_MOST, int(ours * _CHUNK))
        self._checked = CheckedRows(seed)
        self._kept = Kept(int(ours * _KEPT))
        # CUB's reductions take seconds each to compile, and sums here are short.
        if (choose := getattr(cupy._core, "set_reduction_accelerators", None)) is not None:
            choose([])

    def info(self) -> HostInfo:
        """Return the GPU."""
        return self._info

    def put(self, values: npt.NDArray[Any]) -> Array:
        """Copy a NumPy array to the GPU. Raises EnvironmentFault."""
        with self.faults():
            return self._host.placed(values)

    def faults(self) -> CupyFaults:
        """Return a context that converts CUDA's errors."""
        return CupyFaults(self._cupy)

    def rows(self, values: int, numbers: int) -> int:
        """Return the rows of weights to compute at a time, with this many values and other numbers each."""
        return max(1, self._chunk // (_OF_VALUE * values + _OF_NUMBER * numbers))

    def kept(self, kind: str, w: npt.NDArray[np.uint8], nbytes: int, make: Callable[[], T | None]) -> T | None:
        """See `Device.kept`."""
        return self._kept.of(kind, w, nbytes, make)

    def take_from(self, rows: npt.NDArray[np.uint8], w: npt.NDArray[np.uint8], numbers: npt.NDArray[np.intp]) -> None:
        """See `Device.take_from`."""
        self._kept.take_from(rows, w, numbers)

    def origin(self, kind: str, rows: npt.NDArray[np.uint8]) -> tuple[Any, npt.NDArray[np.intp]] | None:
        """See `Device.origin`."""
        return self._kept.origin(kind, rows)

    def sample(self, rows: int, read: bool = False) -> npt.NDArray[np.intp]:
        """See `Device.sample`."""
        return self._checked.sample(rows, read)


class CheckedRows:
    """Chooses the rows that NumPy computes, too.

    Reading and multiplying are counted separately: if they alternated, one count would always choose one of the two and
    never the other.

    Args:
        seed: of the rows.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        #: (Whether rows are read, whether they are many) → number of calls.
        self._asked: Counter[tuple[bool, bool]] = Counter()

    def sample(self, rows: int, read: bool = False) -> npt.NDArray[np.intp]:
        """See `Device.sample`."""
        large = rows > _FEW
        self._asked[read, large] += 1
        if not (read and large) and self._asked[read, large] % (_EACH_LARGE if large else _EACH) != 1:
            return np.zeros(0, np.intp)
        return np.sort(self._rng.choice(rows, min(rows, _ROWS if large else 1), replace=False)).astype(np.intp)


class CupyFaults:
    """A context that converts CUDA's errors."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        cuda = self._cuda
        if isinstance(error, cuda.memory.OutOfMemoryError):
            said = "the GPU's memory does not suffice for exact products (--exact-on cpu computes them by NumPy)"
            raise EnvironmentFault(f"{said}: {str(error).splitlines()[0]}") from None
        if isinstance(error, (cuda.driver.CUDADriverError, cuda.runtime.CUDARuntimeError, cuda.cublas.CUBLASError)):
            raise EnvironmentFault(f"the GPU failed at exact products: {str(error).splitlines()[0]}") from None


def arrays_for(asked: str, host: str, seed: int) -> tuple[CupyArrays | None, str]:
    """Return the device of exact products, None for NumPy, and its description.

    Args:
        asked: "cpu", "gpu" or "auto".
        host: the name of the kernel's host.
        seed: of the sample that NumPy computes, too.

    Raises EnvironmentFault if "gpu" was requested and is not possible; UsageError for anything else.
    """
    if asked not in ("auto", "cpu", "gpu"):
        raise UsageError(f"exact products are computed on auto, cpu or gpu, not {asked!r}")
    compiled_sums.offer()
    if asked == "cpu" or (asked == "auto" and host != "gpu"):
        return None, "NumPy"
    fault = fault_of_arrays()
    if fault is None:
        made = CupyArrays(seed)
        return made, f"{made.info().words}; a sample by NumPy, too"
    if asked == "gpu":
        raise EnvironmentFault(f"exact products cannot be computed on a GPU: {fault}")
    return None, f"NumPy, since {fault}"
