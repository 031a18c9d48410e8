"""gguf-verify: proves, on the bytes of a real model, that a kernel computes what llama.cpp computes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit.audit import audit as audit_model
    from .audit.record import Audit, AuditOptions
    from .captured import Judged, judge_captured, judge_case
    from .identification import IdentifyReport, identify_model
    from .kernels.foreign.api import Oracle, Shape, kernel
    from .results.calls import Call
    from .results.failures import Failure
    from .results.options import Options
    from .results.report import Report
    from .results.rungs import RungResult
    from .rungs.drawn import Drawn
    from .support.errors import HarnessError, VerificationError
    from .verification import verify

    __version__: str

__all__ = [
    "Audit", "AuditOptions", "Call", "Drawn", "Failure", "HarnessError",
    "IdentifyReport", "Judged", "Options", "Oracle", "Report", "RungResult", "Shape", "VerificationError",
    "__version__", "audit_model", "identify_model", "judge_captured", "judge_case", "kernel", "verify",
]  # fmt: skip

#: What is public, and the module that defines it. It is imported at its first use: llama.cpp's process and
#: the command line import this package too, and need far less of it.
_PUBLIC = {
    **dict.fromkeys(("Audit", "AuditOptions"), ".audit.record"),
    "audit_model": ".audit.audit",
    **dict.fromkeys(("Judged", "judge_captured", "judge_case"), ".captured"),
    **dict.fromkeys(("IdentifyReport", "identify_model"), ".identification"),
    **dict.fromkeys(("Oracle", "Shape", "kernel"), ".kernels.foreign.api"),
    "Call": ".results.calls",
    "Failure": ".results.failures",
    "Options": ".results.options",
    "Report": ".results.report",
    "RungResult": ".results.rungs",
    **dict.fromkeys(("HarnessError", "VerificationError"), ".support.errors"),
    "Drawn": ".rungs.drawn",
    "verify": ".verification",
}
#: Names that are others in their modules: `gguf_verify.audit` is a package.
_NAMED_THERE = {"audit_model": "audit"}


def __dir__() -> list[str]:
    """What is public: `dir(gguf_verify)`, and what an editor or a notebook completes."""
    return __all__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .support.version import project_version

        return project_version()
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name], __name__), _NAMED_THERE.get(name, name))
