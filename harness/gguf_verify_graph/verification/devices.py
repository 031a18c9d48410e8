"""Opening of builds of llama.cpp, and their devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gguf_verify.backend_results import DeviceInfo, GraphOptions, LlamaBuild
from gguf_verify.llama import Llama
from gguf_verify.llama.builds import path_of
from gguf_verify.processes.sandbox import sandboxed
from gguf_verify.support.text import printable


@contextmanager
def open_llama(options: GraphOptions) -> Iterator[Llama]:
    """Start llama.cpp's process with the requested build. Raises UsageError, EnvironmentFault."""
    with Llama(options.time_limit, options.verbose, build=path_of(options.llama)) as llama:
        yield llama


def known_devices(options: GraphOptions) -> tuple[LlamaBuild, list[DeviceInfo]]:
    """Return a build of llama.cpp and its devices. Raises UsageError, EnvironmentFault."""
    with sandboxed(options.sandbox), open_llama(options) as llama:
        return build_of(llama), devices_of(llama)


def devices_of(llama: Llama) -> list[DeviceInfo]:
    """Return the devices in the build's ggml registry."""
    return [
        DeviceInfo(
            name=printable(d.name, 100), backend=printable(d.backend, 100), description=printable(d.description, 200),
            kind=printable(d.kind, 100), memory=d.total,
        )
        for d in llama.devices()
    ]  # fmt: skip


def build_of(llama: Llama) -> LlamaBuild:
    """Return the build that a llama.cpp process has loaded."""
    said = llama.versions()
    return LlamaBuild(
        llama_cpp=printable(said["llama_cpp"], 100),
        ggml=printable(said["ggml"], 100),
        llama_cpp_python=printable(said["llama_cpp_python"], 100),
        folder=printable(said["folder"], 400),
        features=printable(said["system"], 600),
    )
