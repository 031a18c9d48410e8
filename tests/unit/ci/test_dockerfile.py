"""The Dockerfile: read as Docker reads it, and built where a Docker daemon answers."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import NamedTuple

import pytest

from tests.support.needs import need
from tests.support.tools import FIXTURES, ROOT


class Stage(NamedTuple):
    """A stage: its base, its name, and its instructions."""

    base: str
    name: str
    lines: list[tuple[str, str]]


def stages() -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments before the first stage, and the stages by name."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    last: list[tuple[str, str]] | None = None
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            last = []
            found[name] = Stage(base, name, last)
        elif last is None:
            assert word == "ARG"
            name, _, value = rest.partition("=")
            arguments[name] = value
        else:
            last.append((word, rest))
    return arguments, found


ARGUMENTS, STAGES = stages()


def all_of(name: str) -> list[tuple[str, str]]:
    """The instructions of an image, with those of the stages that it is made from."""
    stage = STAGES[name]
    return [*(all_of(stage.base) if stage.base in STAGES else []), *stage.lines]


def test_base_images_are_pinned() -> None:
    bases = {s.base for s in STAGES.values()} - STAGES.keys()
    for base in bases:
        image, _, tag = re.sub(r"\$\{(\w+)\}", lambda m: ARGUMENTS[m[1]], base).partition(":")
        assert image == "python"
        assert re.fullmatch(r"3\.\d+\.\d+-slim-bookworm", tag)


@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_images_run_as_an_ordinary_user(image: str) -> None:
    lines = all_of(image)
    users = [rest for word, rest in lines if word == "USER"]
    assert users[-1] == "10001"
    assert lines[-1][0] == "USER", "what comes after it would be the user's to change"
    assert ("ENTRYPOINT", '["gguf-verify"]') in lines
    assert any(word == "LABEL" and "org.opencontainers.image.licenses" in rest for word, rest in lines)


def test_the_image_that_is_built_without_a_target_is_the_one_for_a_cpu() -> None:
    assert [*STAGES][-1] == "cpu"


def test_nothing_is_fetched_but_packages() -> None:
    for stage in STAGES.values():
        for word, rest in stage.lines:
            assert word != "ADD"
            assert not re.search(r"https?://|curl|wget", rest)
            if word == "RUN" and "apt-get install" in rest:
                assert "rm -rf /var/lib/apt/lists/*" in rest
                assert "--no-install-recommends" in rest


def test_copied_files_exist_and_are_not_ignored() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for stage in STAGES.values():
        for word, rest in stage.lines:
            if word == "COPY" and not rest.startswith("--from="):
                copied |= {*rest.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_sources_of_the_wheel_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for path in (*built["packages"], *built["force-include"], project["project"]["readme"]):
        assert path.partition("/")[0] in let_in


def test_stages_that_are_copied_from_exist() -> None:
    for stage in STAGES.values():
        for word, rest in stage.lines:
            if word == "COPY" and rest.startswith("--from="):
                assert rest.split()[0].removeprefix("--from=") in STAGES


@pytest.mark.needs("docker")
def test_the_image_is_built_and_audits() -> None:
    need("docker")
    name = "gguf-verify-test"
    for line in (
        ["docker", "build", "--tag", name, str(ROOT)],
        ["docker", "run", "--rm", "--volume", f"{FIXTURES}:/work:ro", name, "audit", "tiny-Q4_0.gguf"],
    ):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
