"""This project's version."""

from __future__ import annotations

from importlib import metadata


def project_version() -> str:
    """As installed; "unknown" in a bare checkout."""
    try:
        return metadata.version("gguf-verify")
    except metadata.PackageNotFoundError:
        return "unknown"
