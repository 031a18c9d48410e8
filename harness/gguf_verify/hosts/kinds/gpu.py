"""A GPU as a host."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...support.errors import EnvironmentFault
from ..kind import HostKind

if TYPE_CHECKING:
    from ..base import Host


@cache
def gpu_fault() -> str | None:
    """Return why no GPU can be used, or None if one can."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed (pip install cupy-cuda13x, or cupy-cuda12x)"
    except Exception as error:  # CuPy checks its libraries at import
        return f"CuPy cannot be imported: {str(error).splitlines()[0]}"
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            return "CUDA sees no device"
        from ..nvrtc import version

        version()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CUDA cannot be used: {str(error).splitlines()[0]}"
    except EnvironmentFault as error:
        return str(error)
    return None


def _make(_threads: int) -> Host:
    from ..cupy_host import CupyHost

    return CupyHost()


GPU = HostKind("gpu", "an NVIDIA GPU, through CuPy", 10, _make, lambda: gpu_fault())
