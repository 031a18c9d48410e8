"""This project's version."""

from __future__ import annotations

from ..support.paths import CHECKOUT


def project_version() -> str:
    """As installed, or as the checkout that the code runs from says; "unknown" where neither does."""
    from importlib import metadata  # slow to import, and rarely needed at once

    try:
        return metadata.version("gguf-verify")
    except metadata.PackageNotFoundError:
        import tomllib

        try:
            project = CHECKOUT / "pyproject.toml"
            return str(tomllib.loads(project.read_text())["project"]["version"])
        except (OSError, KeyError, ValueError):
            return "unknown"
