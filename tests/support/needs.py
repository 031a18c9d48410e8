"""What tests need beside the project's own dependencies, and what becomes of a test whose need is not met.

A test says `@pytest.mark.needs("chromium")`; a helper that finds out later calls `need("libasan")`. A need that is not
met skips the test, and fails it where the command line has `--require=chromium`.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from _pytest.outcomes import Skipped

#: The contributors' models, beside the checkout.
SHARED_MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"


class Unmet(Skipped):
    """Skips a test because of a need. `need` is its name."""

    def __init__(self, need: str, reason: str) -> None:
        super().__init__(f"{need}: {reason}", _use_item_location=True)
        self.need = need


@dataclass(frozen=True)
class Need:
    """Something that not every machine has.

    Args:
        what: it in words, for the line at the end of a run.
        cure: what makes the tests run.
        fault: says why the need is not met, or None where it is met.
    """

    what: str
    cure: str
    fault: Callable[[], str | None]


def _programs(*names: str) -> Callable[[], str | None]:
    def fault() -> str | None:
        missing = [name for name in names if shutil.which(name) is None]
        return f"{' and '.join(missing)} not found" if missing else None

    return fault


def _modules(*names: str) -> Callable[[], str | None]:
    def fault() -> str | None:
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        return f"{' and '.join(missing)} not installed" if missing else None

    return fault


def _gpu() -> str | None:
    from gguf_verify.hosts.choice import HOSTS

    return HOSTS["gpu"].fault()


def _llama_gpu() -> str | None:
    from gguf_verify.llama.library import Llama
    from gguf_verify.support.errors import EnvironmentFault

    try:
        with Llama() as llama:
            llama.start_backend("gpu")
    except EnvironmentFault as fault:
        return str(fault)
    return None


def vulkan() -> Path:
    """The build of llama.cpp whose Vulkan backend is tested: the one that .ci/install lays into build/, or another."""
    return Path(os.environ.get("GGUF_VERIFY_TEST_VULKAN") or Path(__file__).resolve().parents[2] / "build/llama-vulkan")


def _vulkan() -> str | None:
    from gguf_verify.llama.builds import find
    from gguf_verify.llama.library import Llama
    from gguf_verify.support.errors import EnvironmentFault

    os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", "0")  # ggml leaves out a software renderer by itself
    found = find(vulkan())
    if isinstance(found, str):
        return found
    try:
        with Llama(build=found.path) as llama:
            known = [device.name for device in llama.devices()]
    except EnvironmentFault as fault:
        return str(fault)
    return None if "Vulkan0" in known else f"no Vulkan0 among {', '.join(known)}"


def later_llama() -> Path | None:
    """A llama.cpp after v0.5.0, all of it in one library: that of PyPI's xllamacpp, which is not imported."""
    found = importlib.util.find_spec("xllamacpp")
    folders = [] if found is None else [*(found.submodule_search_locations or ())]
    return next((path for folder in folders for path in Path(folder).glob("*.so")), None)


def _bubblewrap() -> str | None:
    from gguf_verify.processes import boundary

    return boundary.fault()


def _landlock() -> str | None:
    from gguf_verify.processes import guard, syscalls

    return syscalls.filter_fault() if guard.landlock_abi() else "no Landlock"


def _memory_groups() -> str | None:
    from gguf_verify.processes import memory_group

    made = memory_group.make(1 << 30)
    if made is None:
        return "this user can make none"
    made.remove()
    return None


def _nvrtc() -> str | None:
    from gguf_verify.hosts import nvrtc
    from gguf_verify.support.errors import EnvironmentFault

    try:
        nvrtc.version()
    except EnvironmentFault as fault:
        return str(fault)
    return None


def _nvcc() -> str | None:
    from gguf_verify.hosts import nvcc

    return None if nvcc.path() else "nvcc not found"


def libasan() -> Path | None:
    """The compiler's address sanitizer as a library that can be preloaded."""
    from gguf_verify.hosts.compiler import compiler

    found = subprocess.run([compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    library = Path(found.stdout.strip())
    return library if library.is_absolute() and library.exists() else None


def _x86() -> str | None:
    machine = platform.machine()
    return None if machine in ("x86_64", "AMD64") else f"this machine is {machine}"


def browser() -> str | None:
    """Chromium, or Chrome, which is the same to a driver."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def _chromium() -> str | None:
    fault = _programs("chromedriver")() or _modules("selenium")()
    return fault if browser() else "no chromium"


def axe() -> Path:
    """axe-core, the rules of accessibility, as a script; it need not exist."""
    found = importlib.util.find_spec("axe_core_python")
    folders = [] if found is None else [*(found.submodule_search_locations or ())]
    return Path(folders[0] if folders else "axe_core_python", "axe.min.js")


def _compute_sanitizer() -> str | None:
    from gguf_verify.hosts import compute_sanitizer

    return compute_sanitizer.fault()


def _docker() -> str | None:
    missing = _programs("docker")()
    if missing:
        return missing
    answered = subprocess.run(["docker", "version"], capture_output=True, check=False)
    return None if answered.returncode == 0 else "no Docker daemon answers"


NEEDS = {
    "gpu": Need("CUDA device", "a machine with a GPU and the extra cuda12 or cuda13", _gpu),
    "llama-gpu": Need(
        "CUDA backend of llama.cpp", "a machine with a GPU and llama-cpp-python built with -DGGML_CUDA=ON", _llama_gpu
    ),
    "vulkan": Need(
        "Vulkan backend of llama.cpp",
        ".ci/install, or in GGUF_VERIFY_TEST_VULKAN a folder with a build of llama.cpp v0.5.0 that has it",
        _vulkan,
    ),
    "later-llama": Need(
        "llama.cpp after v0.5.0", "pip install xllamacpp==2026.10.11549",
        lambda: None if later_llama() else "xllamacpp not installed",
    ),
    "bubblewrap": Need("bubblewrap", "apt-get install bubblewrap", _bubblewrap),
    "memory groups": Need("control groups of memory", "root, or a group that systemd delegates", _memory_groups),
    "landlock": Need("Landlock", "Linux 5.13 or newer, with seccomp", _landlock),
    "compute-sanitizer": Need("compute-sanitizer", "the CUDA toolkit", _compute_sanitizer),
    "chromium": Need(
        "browser", "apt-get install chromium chromium-driver", _chromium
    ),
    "axe": Need(
        "axe-core", "pip install axe-core-python", lambda: None if axe().exists() else "axe_core_python not installed"
    ),
    "libasan": Need(
        "address sanitizer", "GCC with libasan", lambda: None if libasan() else "the compiler has no libasan.so"
    ),
    "nvrtc": Need("NVRTC", "pip install nvidia-cuda-nvrtc", _nvrtc),
    "nvcc": Need("nvcc", "the CUDA toolkit", _nvcc),
    "real-model": Need(
        "real model", "--require real-model, which downloads 250 MB",
        lambda: None if "real-model" in required else "not requested",
    ),
    "cmake": Need("CMake", "pip install cmake", _programs("cmake")),
    "torch": Need("PyTorch", "pip install torch", _modules("torch")),
    "triton": Need("Triton", "pip install triton torch", _modules("triton", "torch")),
    "ray": Need("Ray", "pip install '.[ray]'", _modules("ray")),
    "matplotlib": Need("matplotlib", "pip install matplotlib", _modules("matplotlib")),
    "shared-models": Need(
        "shared model", "the folder shared/models beside the checkout",
        lambda: None if SHARED_MODELS.is_dir() else f"no folder {SHARED_MODELS.name} beside the checkout",
    ),
    "x86-64": Need("x86-64 processor", "an x86-64 machine", _x86),
    "check-jsonschema": Need("check-jsonschema", "pip install check-jsonschema", _programs("check-jsonschema")),
    "zizmor": Need("zizmor", "pip install zizmor", _programs("zizmor")),
    "ssh-keygen": Need("ssh-keygen", "apt-get install openssh-client", _programs("ssh-keygen")),
    "pre-commit": Need("pre-commit", "pip install pre-commit", _programs("pre-commit")),
    "docker": Need("Docker", "a Docker daemon", _docker),
    "actionlint": Need("actionlint", "its program on the path", _programs("actionlint")),
}  # fmt: skip

#: Names of needs that must be met: `--require`.
required: set[str] = set()


@cache
def fault_of(name: str) -> str | None:
    """Why a need is not met, or None; found out once."""
    return NEEDS[name].fault()


def need(name: str) -> None:
    """Skips the running test if the need is not met; fails it if the need is required."""
    unmet(name, fault_of(name))


def unmet(name: str, fault: str | None) -> None:
    """As `need`, where the caller knows the fault, as of one type or one card alone."""
    if fault is None:
        return
    if name in required:
        pytest.fail(f"--require={name}: {fault}", pytrace=False)
    raise Unmet(name, fault)
