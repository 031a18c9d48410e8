"""The packages of a variant's Python besides llama.cpp: this project's dependencies and its own code."""

from __future__ import annotations

import contextlib
import re
import shutil
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import PACKAGE
from gguf_verify.support.text import printable

#: The package whose version differs between variants.
LLAMA_PACKAGE = "llama-cpp-python"
#: Extras whose packages the GPU host needs.
_GPU_EXTRAS = ("cuda12", "cuda13")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def requirements(gpu: bool) -> tuple[str, ...]:
    """Return the project's dependencies except llama-cpp-python, pinned to the installed versions, sorted.

    Pinned, so that variants differ by llama.cpp only.

    Args:
        gpu: also include the installed packages of the GPU extras.

    Raises EnvironmentFault if the project's metadata cannot be read.
    """
    out = set()
    for name, specifier, extra in _declared():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if name.lower().replace("_", "-") == LLAMA_PACKAGE or (
            extra and not (gpu and extra in _GPU_EXTRAS and version)
        ):
            continue
        out.add(f"{name}=={version}" if version else f"{name}{specifier}")
    return tuple(sorted(out))


def _declared() -> list[tuple[str, str, str]]:
    """Return (name, version specifier, extra or "") of each dependency: from pyproject.toml in a checkout, otherwise
    from the installed metadata."""
    project = package_parent().parent / "pyproject.toml"
    try:
        if _in_checkout():
            table = tomllib.loads(project.read_text())["project"]
            found = [(text, "") for text in table["dependencies"]]
            found += [(text, extra) for extra, all_ in table["optional-dependencies"].items() for text in all_]
        else:
            found = []
            for text in metadata.requires("gguf-verify") or []:
                extra = _EXTRA.search(text)
                found.append((text, extra[1] if extra else ""))
    except (metadata.PackageNotFoundError, OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise EnvironmentFault(f"the project's dependencies are not known: {printable(str(error), 100)}") from None
    parsed = [(_REQUIREMENT.match(text), extra) for text, extra in found]
    return [(m[1], m[2].replace(" ", ""), extra) for m, extra in parsed if m]


def package_parent() -> Path:
    """The folder that contains the package: `harness` in a checkout, or site-packages."""
    return PACKAGE.parent


def _in_checkout() -> bool:
    parent = package_parent()
    return parent.name == "harness" and (parent.parent / "pyproject.toml").is_file()


@contextlib.contextmanager
def package_path(folder: Path) -> Iterator[str]:
    """Provide a PYTHONPATH that contains this package, but no other installed package.

    Site-packages also contain this Python's llama-cpp-python, so an installed package is copied to `folder`, with its
    metadata.
    """
    parent = package_parent()
    if _in_checkout():
        yield str(parent)
        return
    shutil.copytree(parent / PACKAGE.name, folder / PACKAGE.name)
    for info in parent.glob("gguf_verify-*.dist-info"):
        shutil.copytree(info, folder / info.name)
    yield str(folder)
