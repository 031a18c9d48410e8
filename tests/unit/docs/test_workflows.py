"""The workflows: rules of a reviewer, and the linters that are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.choice import HOST_CHOICES
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.ladder import KERNELS
from tests.support.needs import need
from tests.support.tools import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs() -> Iterator[tuple[str, dict[str, Any], dict[object, Any]]]:
    assert {path.name for path in WORKFLOWS} >= {"ci.yml", "fuzz.yml", "nightly.yml", "release.yml"}
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        for name, job in workflow["jobs"].items():
            yield f"{path.name}: {name}", job, workflow


JOBS = pytest.mark.parametrize(("job", "workflow"), [pytest.param(job, flow, id=name) for name, job, flow in jobs()])


@JOBS
def test_least_privilege(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    assert workflow["permissions"] == {}
    writes = {name for name, right in job["permissions"].items() if right != "read"}
    assert writes <= {"issues", "id-token", "attestations"}
    if "id-token" in writes:
        assert job["permissions"] == {"id-token": "write", "attestations": "write"}
        assert not any("run" in step for step in job["steps"]), "who signs runs nothing but pinned actions"
        assert "attest-build-provenance" in job["steps"][-1]["uses"]
    if writes:
        uses = [step.get("uses", "") for step in job["steps"]]
        assert not any("checkout" in name for name in uses), "who may write runs no code of the repository"
    for step in job["steps"]:
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@JOBS
def test_bounded(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    assert 0 < job["timeout-minutes"] <= 360
    assert workflow["concurrency"]["group"]


@JOBS
def test_no_text_becomes_code(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    for step in job["steps"]:
        assert "${{" not in step.get("run", ""), "pass it in env"


@JOBS
def test_a_machine_of_ones_own_is_off_by_default(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    if "self-hosted" in job["runs-on"]:
        assert job["if"].startswith("vars.GPU_RUNNER == 'true'")
        triggers = workflow[True]  # YAML 1.1 reads `on` as a truth
        assert "pull_request" not in triggers or "github.event_name == 'push'" in job["if"]


def test_actions_are_pinned() -> None:
    for path in WORKFLOWS:
        found = re.findall(r"uses: (.*)", path.read_text())
        assert found
        for used in found:
            own = used.startswith("./ #")
            assert own or re.fullmatch(r"actions/[a-z/-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", used)


def test_installed_packages_have_digests() -> None:
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["env"]["LOCKED"] == "1"
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                assert "pip install" not in step.get("run", ""), "requirements/install NAME"


def test_a_release_takes_nothing_from_a_cache() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert [*workflow["jobs"]] == ["build", "attest"]
    assert not any("cache" in step.get("uses", "") for job in workflow["jobs"].values() for step in job["steps"])
    assert workflow["jobs"]["attest"]["needs"] == "build"


def test_the_history_of_nights_is_attested_and_verified_before_it_is_read() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    jobs = workflow["jobs"]
    for job in jobs.values():  # a cache that other runs can write holds wheels only
        for step in job["steps"]:
            assert "cache" not in step.get("uses", "") or step["with"]["path"] == "~/.cache/pip"
    verify = jobs["history"]["steps"][0]["run"]
    for flag in ("--source-ref", "--signer-workflow", "--deny-self-hosted-runners", "--repo"):
        assert flag in verify.partition("gh attestation verify")[2]
    assert set(jobs["history"]["permissions"].values()) == {"read"}
    assert jobs["matrix"]["needs"] == "history"
    names = {step["with"]["name"] for step in jobs["matrix"]["steps"] if "download-artifact" in step.get("uses", "")}
    assert names == {"nightly-history-verified"}
    kept = [step["with"] for step in jobs["matrix"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert ("nightly-history", "history.tar") in {(w["name"], w["path"]) for w in kept}
    assert jobs["attest"]["steps"][-1]["with"]["subject-path"] == "history.tar"


def _history_step(folder: Path, attested: tuple[str, ...], runs: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """The step that fetches the history, with a stand-in for gh."""
    step = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]["history"]["steps"][0]
    gh = folder / "gh"
    gh.write_text(
        f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
if words[0] == "api":
    print("\\n".join({runs!r}))
elif words[:2] == ["run", "download"]:
    os.makedirs("candidate")
    open("candidate/history.tar", "w").write(words[2])
else:
    assert words[:2] == ["attestation", "verify"], words
    sys.exit(0 if open(words[2]).read() in {attested!r} else 1)
"""
    )
    gh.chmod(0o755)
    environment = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "GITHUB_OUTPUT": str(folder / "output"),
        "GH_REPO": "a/b", "GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main",
    }  # fmt: skip
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-c", step["run"]], env=environment, cwd=folder, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_only_an_attested_history_is_taken(tmp_path: Path) -> None:
    done = _history_step(tmp_path, attested=("2", "1"), runs=("3", "2", "1"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "candidate" / "history.tar").read_text() == "2", "the newest that is attested"
    assert (tmp_path / "output").read_text() == "found=true\n"
    assert "::warning::the history of run 3" in done.stdout


def test_histories_without_any_attestation_end_the_night(tmp_path: Path) -> None:
    done = _history_step(tmp_path, attested=(), runs=("3", "2"))
    assert done.returncode == 1
    assert not (tmp_path / "output").exists()


def test_a_first_night_has_no_history(tmp_path: Path) -> None:
    done = _history_step(tmp_path, attested=(), runs=())
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "output").exists()


def test_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    stated = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == stated == ["3.11", "3.12", "3.13", "3.14"]


def test_the_matrix_of_the_night() -> None:
    config = tomllib.loads((ROOT / ".github/nightly.toml").read_text())
    assert {*config["kernels"]} <= {*KERNELS, *FAMILIES}
    assert {*config["hosts"]} <= {*HOST_CHOICES}
    assert {*config["quantize"]["types"]} <= {*FORMATS}
    for path in (*config["models"], *config["quantize"]["sources"]):
        assert (ROOT / path).is_file()
    versions = {v.get("llama-cpp-python") for v in config["variants"].values()}
    assert len(versions) >= 3


LINTERS = (
    "check-jsonschema --builtin-schema vendor.github-workflows",
    "zizmor --offline --no-progress --persona pedantic",
    "actionlint",
)


@pytest.mark.parametrize("command", LINTERS)
def test_linters(command: str) -> None:
    program, *arguments = command.split()
    need(program)
    line = [program, *arguments, *map(str, WORKFLOWS)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
