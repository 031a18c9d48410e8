"""Compilation by nvcc, if installed: a foreign kernel is compiled to a cubin with its author's own flags.

CUDA's headers, which NVRTC needs as well, are found beside it or among installed Python packages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..support import scratch
from ..support.errors import EnvironmentFault
from ..support.sources import of_makefile
from .compilation import Author, ForeignUnit, failed, split_flags
from .cubin import functions, lowered, marks
from .foreign_sources import as_foreign, read_limited
from .tables import write_headers

#: Flags for the target or the output, which are determined here.
_OURS = (
    "-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code", "-o", "--output-file", "-c",
    "-dc", "-dw", "-dlink", "-lib", "-link", "-ptx", "--ptx", "-cubin", "--cubin", "-fatbin", "-run", "--run", "-E",
    "-M", "--shared", "-shared", "-odir", "--output-directory", "-keep", "--keep", "-rdc", "--relocatable",
    "-ccbin", "--compiler-bindir", "--threads", "-t", "-optf", "--options-file", "@", "-x", "-fPIC", "-time", "--time",
    "-cudart", "--cudart", "-std=c++11",
)  # fmt: skip
_EXACT = ("-fmad=false", "-prec-div=true", "-ftz=false")


def path() -> str | None:
    """Return the path of nvcc, or None."""
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if home and (found := shutil.which(os.path.join(home, "bin", "nvcc"))):
            return found
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


@cache
def version() -> str | None:
    """Return nvcc's version, such as "13.0"; None if it is not installed, or does not run."""
    if (nvcc := path()) is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False)
        if found := re.search(r"release (\d+\.\d+)", done.stdout):
            return found[1]
    return None


@cache
def include_folder() -> Path | None:
    """Return the folder of CUDA's headers: of the toolkit, of the packages nvidia-cuda-runtime, or of CuPy."""
    for folder in _folders():
        if (folder / "cuda_fp16.h").is_file():
            # A sandbox binds the folder at its own path, where a link to it cannot be created.
            return folder.resolve()
    return None


def _folders() -> Iterator[Path]:
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            yield Path(home) / "include"
    if nvcc := path():
        yield Path(os.path.realpath(nvcc)).parent.parent / "include"
    with contextlib.suppress(Exception):  # an older cuda-pathfinder does not look for headers
        from cuda.pathfinder import find_nvidia_header_directory

        if found := find_nvidia_header_directory("cudart"):
            yield Path(found)
    # CuPy brings the headers of several versions; the newest comes first.
    for package, pattern in (("nvidia", "*/include"), ("cupy", "_core/include/cupy/_cuda/cuda-*")):
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            for folder in (spec.submodule_search_locations or []) if spec else []:
                yield from sorted(Path(folder).glob(pattern), reverse=package == "cupy")


def used_flags(author: Author) -> tuple[list[str], list[str]]:
    """Return nvcc's flags, and the flags of the author's that are not used."""
    ours, kept = split_flags(author.flags, _OURS)
    return [*kept, *(_EXACT if author.ordered else ())], ours


def compile_cubin(of: ForeignUnit, sm: str, lines: bool = False) -> tuple[bytes, dict[str, str]]:
    """Compile kernels for `sm` (such as "90"); return the cubin and the name of each kernel in it.

    Raises EnvironmentFault with the compiler's errors.
    """
    nvcc = path()
    if nvcc is None:
        raise EnvironmentFault("nvcc was not found")
    foreign = as_foreign(of.root)
    with scratch.temporary("nvcc") as folder:
        unit, made = folder / "unit.cu", folder / "unit.cubin"
        write_headers(folder)
        macros = "".join(f"#define {name} {value}\n" for name, value in of.defines.items())  # nvcc cuts -D at commas
        unit.write_text(f'{macros}#include "{of.file}"\n{marks(of.entries)}')
        command = [nvcc, "-cubin", f"-arch=sm_{sm}", *used_flags(of.author)[0], *(["-lineinfo"] if lines else [])]
        command += [f"-I{of.root}", f"-I{folder}", *(f"-I{of.root / name}" for name in of.author.include)]
        command += ["-o", str(made), str(unit)]
        if foreign is not None:
            listed = folder / "unit.d"
            done = foreign.run([*command, "-MD", "-MF", str(listed)], folder)
        else:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder, check=False)
        if done.returncode:
            raise failed(
                f"nvcc could not compile {of.file} for sm_{sm}", [*done.stderr.splitlines(), *done.stdout.splitlines()]
            )
        cubin = read_limited(made)
        if foreign is not None:
            foreign.listed = _read_files(listed, folder)
    return cubin, lowered(functions(cubin), of.entries)


def _read_files(listed: Path, folder: Path) -> tuple[str, ...]:
    """Return the files that nvcc listed, without those in `folder` and CUDA's headers, which its version identifies."""
    headers = include_folder()
    own = (f"{folder}/", *([] if headers is None else [f"{os.path.realpath(headers)}/"]))
    read = of_makefile(read_limited(listed).decode(errors="surrogateescape"))
    return tuple(path for path in read if not os.path.realpath(path).startswith(own))
