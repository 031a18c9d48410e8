"""This project's version."""

from __future__ import annotations


def project_version() -> str:
    """As installed; "unknown" in a bare checkout."""
    from importlib import metadata  # slow to import, and rarely needed at once

    try:
        return metadata.version("gguf-verify")
    except metadata.PackageNotFoundError:
        return "unknown"
