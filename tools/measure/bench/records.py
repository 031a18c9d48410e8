"""The records of verifications and of planted faults, in docs/benchmarks.json and docs/planted.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import CHECKOUT

#: Verifications, and planted faults.
RUNS, PLANTED = CHECKOUT / "docs" / "benchmarks.json", CHECKOUT / "docs" / "planted.json"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's own evaluation of a prompt.

    Args:
        backend: on which it ran, in words.
        threads: of its CPU backend.
        seconds: the median of several evaluations, without the first.
    """

    backend: str
    threads: int
    seconds: float


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measurement on one model with one prompt.

    Args:
        date: as 2026-11-23.
        layers, width, ff, heads, kv_heads, vocab: of the model.
        type: of its file; `file_bytes`: its size.
        tokens: of the prompt.
        kernel: as the command line had it; host: where it ran.
    """

    #: Names of the fields that identify the requested measurement.
    requested: ClassVar[tuple[str, ...]] = ()

    date: str
    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    vocab: int
    type: str
    file_bytes: int
    tokens: int
    kernel: str
    host: str

    @property
    def key(self) -> dict[str, Any]:
        """Return what identifies the measurement: of records with the same key, the last one counts."""
        return {name: getattr(self, name) for name in (*_REQUESTED, *self.requested)}


_REQUESTED = ("type", "kernel", "host", "vocab", "layers", "width", "ff", "heads", "kv_heads", "tokens")


class Run(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A measured verification.

    Args:
        predicted: tokens after the prompt.
        thorough, options: as the command line had them; further options in words.
        gpus: the number of GPUs that it could use; 0 if not limited.
        ray: it ran in processes of Ray.
        verdict: of the report.
        seconds: from start to exit; `rungs`: of each.
        above: bytes of the largest memory, less the file's size; None if unknown.
        processor, disk, fetched, gpu, gpu_memory: see `processes.Measured`; None if not measured.
        llama: of the same prompt; None if not measured.
    """

    requested = ("predicted", "thorough", "options", "ray", "gpus")

    predicted: int
    verdict: str
    seconds: float
    rungs: dict[str, float]
    above: int | None = None
    thorough: bool = False
    options: str = ""
    gpus: int = 0
    ray: bool = False
    processor: float | None = None
    disk: float | None = None
    fetched: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    llama: Evaluation | None = None


class Planted(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Faults of one code each that were planted, each verified by itself.

    Args:
        seed: random seed; `planted`: the number of faults.
        seen: number of faults that changed a bit of any output of the verification.
        promised: number of faults that moved an output by more than the sample promises to find.
        promised_found: number of these that were found at the fault's row; `found`: of all faults.
        thorough: number of faults found there with `--thorough`.
        smallest: the largest of the errors, as shares of the outputs' size, above which the samples promise to find
            one; 0 if all matrices were judged whole.
        right: without a fault, every matrix that had one was verified.
    """

    requested = ("seed", "planted")

    seed: int
    planted: int
    seen: int
    promised: int
    promised_found: int
    found: int
    thorough: int
    smallest: float
    right: bool


R = TypeVar("R", bound=Record)
#: Device, in words → its records.
Results = dict[str, tuple[R, ...]]


def load(kind: type[R], path: Path) -> Results[R]:
    """Read the results; {} if the file does not exist. Raises UsageError if it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[kind, ...]]) if path.exists() else {}  # type: ignore[valid-type]
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} holds no results: {error}") from None


def merged(results: Results[R], others: Results[R]) -> Results[R]:
    """Merge two results; of records of one device with the same key, `others` wins. Records are sorted by their
    keys."""
    devices = dict[str, tuple[R, ...]]()
    for device in sorted({*results, *others}):
        runs = {tuple(run.key.values()): run for of in (results, others) for run in of.get(device, ())}
        devices[device] = tuple(runs[key] for key in sorted(runs))
    return devices


def save(results: Mapping[str, Sequence[Record]], path: Path) -> None:
    """Write the file, with one record per line."""
    parts = []
    for device, runs in results.items():
        lines = ",\n".join(f"  {json.dumps(msgspec.to_builtins(run), ensure_ascii=False)}" for run in runs)
        parts.append(f"{json.dumps(device, ensure_ascii=False)}: [\n{lines}\n]")
    path.write_text("{" + ",\n".join(parts) + "}\n")
