"""gguf-verify's verdict on a kernel of the museum, verified as a user would do it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.verification import verify
from tests.meta.museum.collection import Exhibit
from tests.support.tools import FIXTURES
from tests.support.typed_models import model_of

RIGHT, UNKNOWN, WRONG = "right", "unknown", "wrong"
#: The verdict on a kernel that is verified up to some size, beyond which CUDA rejects its launches.
LIMITED = "verified within limits"
#: The rungs that are climbed.
RUNGS = ("blocks", "layers")
#: Verdicts of a diagnosis that give a specific cause.
_BLAMING = ("another definition", "known fault", "another order")


@dataclass(frozen=True)
class Said:
    """The parts of a report on a kernel that the museum uses.

    Args:
        verdict: the report's.
        plan: the probe plan, "brief" or "full".
        rungs: those that failed.
        culprits: the sides at fault.
        failures: every line about an error or a check that could not be made.
        diagnosis: the lines of every diagnosis.
        names: ids of the faults in the diagnoses.
        blames: verdicts of the diagnoses.
    """

    verdict: str
    plan: str
    rungs: tuple[str, ...]
    culprits: tuple[str, ...]
    failures: tuple[str, ...]
    diagnosis: tuple[str, ...]
    names: tuple[str, ...]
    blames: tuple[str, ...]

    def naming(self, exhibit: Exhibit) -> str:
        """Whether the diagnosis of the bug is right, wrong or unknown."""
        label = exhibit.label
        right = bool(set(self.names) & set(label.names))
        lines = "\n".join((*self.failures, *self.diagnosis, *self.names))
        lines = lines.replace(exhibit.id, "kernel")  # findings quote the file name, which contains the bug's name
        right = right or any(re.search(pattern, lines, re.IGNORECASE) for pattern in label.says)
        if set(self.names) - set(label.names) and not right:
            return WRONG
        if any(b in _BLAMING for b in self.blames) and not right:
            return WRONG
        return RIGHT if right else UNKNOWN


def model_for(exhibit: Exhibit, folder: Path, llama: Llama) -> Path:
    """Return a model of the exhibit's type: a fixture, or one that llama.cpp quantizes in `folder`."""
    fixture = FIXTURES / f"tiny-{exhibit.model}.gguf"
    return fixture if fixture.exists() else model_of(FORMATS[exhibit.model], folder, llama)


def options_of(plan: Literal["brief", "full"]) -> Options:
    """The options of a verification by this probe plan: of matrices of both widths of the model, 256 and 768."""
    return Options(prompt="The import", n_predict=1, tensor=r"blk\.0\.(attn_k|ffn_down)\.", progress=False, probes=plan)


def said_of(kernel: Path, model: Path, *plans: Literal["brief", "full"], exhibit: Exhibit | None = None) -> Said:
    """Verify a model with the kernel FILE:gemm on the CPU host.

    Args:
        plans: the probe plans to try in turn, until one finds a fault and the diagnosis is correct. The brief plan is
            part of the full one, which is the default for users.
        exhibit: the expected diagnosis; None: any.
    """
    for plan in plans:
        said = of(verify(model, f"{kernel}:gemm", CpuHost(1), RUNGS, options_of(plan)))
        if said.verdict != "verified" and (exhibit is None or said.naming(exhibit) == RIGHT):
            break
    return said


def of(report: Report) -> Said:
    """Extract the parts of a report."""
    rungs = report.rungs
    diagnoses = [r.diagnosis for r in rungs if r.diagnosis is not None]
    return Said(
        LIMITED if report.limits and not report.exit_code else report.verdict, report.environment.options.probes,
        tuple(r.name for r in rungs if r.verdict != "passed"), tuple(report.culprits),
        tuple([f.what for _, f in report.failures] + [f"{u.name}: {u.why}" for r in rungs for u in r.unverified]
              + [r.fault for r in rungs if r.fault] + report.limits + [n for r in rungs for n in r.notes]),
        tuple(line for d in diagnoses for line in d.lines),
        tuple(f.id for d in diagnoses for f in d.faults), tuple(d.verdict for d in diagnoses),
    )  # fmt: skip
