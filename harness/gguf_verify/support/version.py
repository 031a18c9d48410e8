"""This project's version."""

from __future__ import annotations

from .paths import CHECKOUT


def project_version() -> str:
    """Return the installed version, or that of the checkout the code runs from; "unknown" if there is neither."""
    from importlib import metadata  # slow to import, and rarely needed

    try:
        return metadata.version("gguf-verify")
    except metadata.PackageNotFoundError:
        import tomllib

        try:
            project = CHECKOUT / "pyproject.toml"
            return str(tomllib.loads(project.read_text())["project"]["version"])
        except (OSError, KeyError, ValueError):
            return "unknown"
