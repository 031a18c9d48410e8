"""Records of the set-up of a verification: host, versions, kernel, file and reference."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ..processes.sandbox import Sandbox
from .composition import Composition, TypeShare
from .coverage import CodeCoverage, Execution
from .options import Options

#: The beginning of the line in `KernelInfo.code` that says why CUDA's compiler did not check code that ran on the CPU.
NOT_COMPILED = "not compiled by "


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a kernel runs.

    Args:
        name: of the host, as `--host` takes it.
        device: name of the processor or the GPU; for a kernel in Python that chooses its own device, the interpreter.
        sm: compute capability of the GPU, such as "90"; None on a CPU.
        threads: operating-system threads that a launch takes; None where the host does not choose.
        compiler: name and version of the C++ compiler.
        driver, nvrtc, cupy: versions of CUDA's driver, of NVRTC and of CuPy.
        own_process: the kernel runs in a process of its own.
        copies: that process copies its outputs from a GPU; that it copied them all cannot be checked.
        chosen: who chose this host.
    """

    name: str
    device: str
    sm: str | None = None
    threads: int | None = None
    compiler: str = ""
    driver: str = ""
    nvrtc: str = ""
    cupy: str = ""
    own_process: bool = False
    copies: bool = False
    chosen: str = ""

    @property
    def words(self) -> str:
        """The host in one line."""
        device = self.device if self.sm is None else f"{self.device} (sm_{self.sm})"
        parts = [f"{self.name}: {device}" if self.name else device]
        if self.threads is not None:
            parts.append(f"{self.threads} threads")
        for title, value in (("", self.compiler), ("CUDA driver ", self.driver), ("NVRTC ", self.nvrtc)):
            parts += [f"{title}{value}"] if value else []
        parts += [f"CuPy {self.cupy}"] if self.cupy else []
        parts += ["in its own process"] if self.own_process else []
        parts += ["which copies its outputs"] if self.copies else []
        return ", ".join(parts)


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of everything that a result may depend on; `llama_build` holds the features of llama.cpp's build."""

    gguf_verify: str
    python: str
    numpy: str
    gguf: str
    llama_cpp_python: str
    llama_cpp: str
    ggml: str
    llama_build: str
    platform: str
    byte_order: str


class OpenedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a foreign kernel is made of: those that the loader mapped into its processes, and those that
    compilers read for it. The files of Python and of this project are not listed.

    Args:
        files: absolute path → sha256; null where it cannot be read or was replaced meanwhile. "/proc/self/maps" stands
            for those of a process that hides them, and words for those that a compiler does not list.
        packages: installed packages of which a file was opened → version; their files are not listed.
    """

    files: dict[str, str | None] = {}
    packages: dict[str, str] = {}

    def with_(self, other: OpenedFiles) -> OpenedFiles:
        """Both together. A file that two processes opened with different contents is null."""
        files = {**self.files, **other.files}
        for path in self.files.keys() & other.files.keys():
            if self.files[path] != other.files[path]:
                files[path] = None
        packages = {**self.packages, **other.packages}
        return OpenedFiles(files=dict(sorted(files.items())), packages=dict(sorted(packages.items())))


@dataclass(frozen=True)
class Observed:
    """The observations of a kernel's processes: the files that they opened, and the code that they executed; None for
    a kernel of this project."""

    opened: OpenedFiles = field(default_factory=OpenedFiles)
    execution: Execution | None = None

    def with_(self, other: Observed) -> Observed:
        """Both together."""
        mine, others = self.execution, other.execution
        both = mine.with_(others) if mine is not None and others is not None else mine or others
        return Observed(self.opened.with_(other.opened), both)


class KernelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel that is verified.

    Args:
        name: as `--kernel` takes it.
        computes: "gemm", "experts", "dequantize", "quantize" or "repack".
        definition: the definition of the product that it declares; of another kernel, what it declares, in words.
        judged_by: the oracle that judges it, if it has no definition of this project; otherwise None.
        verified_means: the meaning of "verified" for such a kernel; otherwise None.
        order: its declared order of summation, in words.
        covers: names of the quantized types that it multiplies.
        element_kernels: type → the kernel that multiplies matrices of that type which are not quantized.
        element_host: where those kernels run.
        code: which code of a foreign kernel was run: what compiled it, with which flags, and which parts of it were not
            compiled; or the digest of a binary.
        hints: what its declaration may have wrong, by its source, each in a line.
        declares: what it declares beside the name of its definition, in words.
        opened: the files that a foreign kernel is made of.
        coverage: the code of a foreign kernel that was executed; None for a kernel of this project, and before the end.
    """

    name: str
    definition: str
    judged_by: str | None
    verified_means: str | None
    order: str
    covers: tuple[str, ...]
    element_kernels: dict[str, str]
    element_host: HostInfo
    computes: str = "gemm"
    code: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()
    opened: OpenedFiles = OpenedFiles()
    coverage: CodeCoverage | None = None

    @property
    def declared(self) -> str:
        """Its whole declaration in one line: the definition, and the additions to its name."""
        return ", ".join((self.definition, *self.declares))


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model's file.

    Args:
        path, size: as it was named, and the bytes of all parts.
        sha256: a digest for each part of a split model.
        tensor_types: type → number of tensors.
        types: the types of the tensors, those with the most bytes first; empty in reports of earlier versions.
    """

    path: str
    size: int
    sha256: tuple[str, ...]
    architecture: str
    tensor_types: dict[str, int]
    types: tuple[TypeShare, ...] = ()

    @property
    def of_types(self) -> str:
        """The types of the weights by bytes, in words; by number of tensors if their bytes are not known."""
        if self.types:
            return Composition(self.types).words()
        return ", ".join(f"{n} {kind}" for kind, n in self.tensor_types.items())


class ReferenceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp as the reference: where it ran, in words, and type → the definitions of its products with that type."""

    where: str
    definitions: dict[str, str]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to repeat a run.

    Args:
        exact_on: where exact products were computed, in words.
        sandbox: the isolation of untrusted processes: those of a foreign kernel, its compiler, llama.cpp and gguf-py.
    """

    versions: Versions
    host: HostInfo
    kernel: KernelInfo
    file: FileInfo
    reference: ReferenceInfo
    sandbox: Sandbox
    options: Options
    exact_on: str = "NumPy"
