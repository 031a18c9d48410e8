"""The locks of requirements/: each has digests of all files, names no index, and holds what pyproject.toml asks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.needs import need
from tests.support.tools import ROOT

FOLDER = ROOT / "requirements"
LOCKS = sorted(FOLDER.glob("*.txt"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_DIGEST = re.compile(r"--hash=sha256:[0-9a-f]{64}")
#: Lock → the extras of pyproject.toml that it holds beside the dependencies.
EXTRAS = {
    "llama": ["llama"],
    "cuda": ["llama", "cuda13"],
    "test": ["llama", "test"],
    "docs": ["docs"],
    "fuzz": ["fuzz"],
}


@cache
def entries(text: str) -> list[tuple[Requirement, list[str]]]:
    """Each requirement of a lock and its options."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            said, *options = re.split(r"\s+(?=--)", line.strip())
            found.append((Requirement(said), options))
    return found


@cache
def version_in(lock: str, wanted: str, python: str) -> str | None:
    """The version that a lock gives this Python on Linux of a package; None for none."""
    machine = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
        "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "os_name": "posix", "extra": "",
    }  # fmt: skip
    found = [
        str(entry.specifier).removeprefix("==")
        for entry, _ in entries((FOLDER / f"{lock}.txt").read_text())
        if canonicalize_name(entry.name) == canonicalize_name(wanted)
        and (entry.marker is None or entry.marker.evaluate(machine))
    ]
    assert len(found) <= 1, f"{wanted} has several versions for Python {python}"
    return found[0] if found else None


def unmet(lock: str, asked: list[str]) -> list[str]:
    """The requirements that a lock does not meet, for any Python."""
    out = []
    for text in asked:
        requirement = Requirement(text)
        for python in PYTHONS:
            version = version_in(lock, requirement.name, python)
            if version is None or not requirement.specifier.contains(version):
                out.append(f"{text}: {version} for Python {python}")
    return out


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_everything_has_one_version_and_digests(path: Path) -> None:
    found = entries(path.read_text())
    assert found
    for requirement, options in found:
        assert re.fullmatch(r"==[0-9][0-9a-z.+!]*", str(requirement.specifier)), requirement
        assert requirement.url is None
        assert options, f"{requirement} has no digest"
        assert all(_DIGEST.fullmatch(option) for option in options), requirement


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_no_index_is_named(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert "@ " not in text
    assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host|^-", text, re.MULTILINE)


@pytest.mark.parametrize("lock", EXTRAS)
def test_a_lock_holds_what_the_project_asks_for(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(line for extra in EXTRAS[lock] for line in extras[extra])]
    assert unmet(lock, asked) == [], "run: make lock"


def test_the_backends_of_builds_are_locked() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert unmet("build", asked) == [], "run: make lock"


@pytest.mark.parametrize("source", sorted(FOLDER.glob("*.in")), ids=lambda path: path.stem)
def test_a_lock_holds_what_its_source_asks_for(source: Path) -> None:
    asked = [line for line in source.read_text().splitlines() if line and not line.startswith("#")]
    assert unmet(source.stem, asked) == [], "run: make lock"


def test_locks_fit_each_other() -> None:
    """They are installed into one environment."""
    for name in [path.stem for path in LOCKS if path.stem != "test"]:
        for requirement, _ in entries((FOLDER / f"{name}.txt").read_text()):
            for python in PYTHONS:
                versions = {version_in(lock, requirement.name, python) for lock in (name, "test")} - {None}
                assert len(versions) <= 1, f"{requirement.name}: {versions} for Python {python}"


def test_the_tests_themselves_see_faults() -> None:
    assert unmet("build", ["hatchling>=9999"])
    assert unmet("build", ["no-such-package"])
    ((_, options),) = entries("a==1\n")
    assert not options


def test_install_asks_for_digests_and_builds_nothing_in_isolation(tmp_path: Path) -> None:
    """With a stand-in for Python, which records how pip is called."""
    stand_in = tmp_path / "python"
    calls_to = tmp_path / "calls"
    stand_in.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(calls_to)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    )
    stand_in.chmod(0o755)
    subprocess.run([FOLDER / "install", stand_in, "llama", "dist"], check=True, capture_output=True, timeout=60)
    calls = [line for line in calls_to.read_text().splitlines() if "pip install" in line]
    assert len(calls) == 2
    assert all("--require-hashes --only-binary :all: --no-binary llama-cpp-python" in line for line in calls)
    assert calls[0].endswith(f"-r {FOLDER}/build.txt")
    assert calls[1].endswith(f"--no-build-isolation -r {FOLDER}/llama.txt -r {FOLDER}/dist.txt")


# ---- hooks -----------------------------------------------------------------------------------------------------------
# .pre-commit-hooks.yaml, as other repositories use it.


(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


def test_its_entry_is_an_installed_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert HOOK["entry"].split()[0] in scripts
    assert HOOK["language"] == "python"


@pytest.mark.parametrize(
    ("name", "wanted"), [("a/model.gguf", True), ("model.gguf.txt", False), ("gguf", False), ("x.GGUF", False)]
)
def test_it_is_for_gguf_files(name: str, wanted: bool) -> None:
    assert bool(re.search(HOOK["files"], name)) is wanted


def test_pre_commit_takes_it(tmp_path: Path) -> None:
    need("pre-commit")
    line = ["pre-commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
