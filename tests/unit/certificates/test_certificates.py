"""Certificates: making, reading and comparing them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from gguf_verify.certificates import check, schema
from gguf_verify.certificates.check import Checked, Installed, compare
from gguf_verify.certificates.make import certify
from gguf_verify.certificates.read import MOST_BYTES, NotACertificate, canonical, parse, read_certificate
from gguf_verify.certificates.records import Project, Statement
from gguf_verify.results.environment import OpenedFiles
from gguf_verify.results.failures import WaiverUse
from gguf_verify.results.report import Report
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.sources import file_digest
from tests.support.certificates import HERE, KERNEL, LIBRARIES, MODEL, RUNGS, files, materials, report, statement
from tests.support.nights import HOSTILE
from tests.support.tools import ROOT, command_here

# ---- how they are made -----------------------------------------------------------------------------------------------


def test_a_certificate_is_read_back() -> None:
    made = statement()
    content = canonical(made)
    assert parse(content) == made
    assert content.endswith(b"}\n")
    assert json.loads(content)["_type"] == "https://in-toto.io/Statement/v1"


def test_it_agrees_with_the_report() -> None:
    for found in (report(), report(wrong=True)):
        said = statement(found).predicate
        assert (said.verdict, said.words, said.exit_code) == (found.verdict, found.words, found.exit_code)
        assert said.culprits == found.culprits
        assert [(r.name, r.verdict, r.failures) for r in said.rungs] == [
            (r.name, r.verdict, r.n_failures) for r in found.rungs
        ]
    assert {statement().predicate.verdict, statement(report(wrong=True)).predicate.verdict} == {"verified", "mismatch"}


def test_no_folder_of_this_machine_is_in_it() -> None:
    content = canonical(statement()).decode()
    assert "/models" not in content
    assert "/home" not in content
    assert "gguf-verify my.gguf --kernel kernels/my.cu:gemm --effort quick" in content


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ended_by": "SIGINT"}, "interrupted"),
        ({"ended_by": "budget"}, "the time limit cut the run short"),
        ({"changed": "it was written to"}, "changed"),
    ],
)
def test_a_run_that_is_not_whole_is_not_certified(fields: dict[str, str], words: str) -> None:
    found = report()
    for name, value in fields.items():
        setattr(found, name, value)
    with pytest.raises(EnvironmentFault, match=f"no certificate: .*{words}"):
        statement(found)


def test_one_call_is_not_certified() -> None:
    with pytest.raises(EnvironmentFault, match="one call"):
        statement(report(only_call="own,m=1,n=1,k=1"))


@pytest.mark.parametrize(
    "after",
    [
        materials(kernel={"kernels/my.cu": "c" * 64}), materials(touched={"/x/my.cu": (1, 2, 3, 4, 6)}),
        materials(project=Project(version="0.1.0", sha256="c" * 64, files=3)), materials(libraries={}),
        materials(packages={"numpy": "3"}),
    ],
)  # fmt: skip
def test_a_run_with_changed_materials_is_not_certified(after: Any) -> None:
    before = materials(touched={"/x/my.cu": (1, 2, 3, 4, 5)})
    after = after if after.touched else materials(**{**vars(after), "touched": before.touched})
    with pytest.raises(EnvironmentFault, match="changed during the run"):
        certify(report(), before, after, RUNGS)


def test_unrequested_checks_are_listed() -> None:
    made_of = materials()
    found = report(tensor="attn")
    found.rungs = found.rungs[:1]
    said = certify(found, made_of, made_of, ("bytes",)).predicate
    assert said.asked.left_out == (
        "rungs not requested: blocks, layers, tokens",
        "every tensor: only those that match 'attn' (--tensor)",
    )  # fmt: skip


def test_the_schema_is_that_of_the_records() -> None:
    """It is written by `python -m gguf_verify.certificates.schema`."""
    assert schema.PATH.read_text() == schema.text()
    checker = jsonschema.Draft202012Validator(json.loads(schema.text()))
    made = json.loads(canonical(statement(report(wrong=True))))
    checker.validate(made)
    for wrong in ({**made, "more": 1}, {**made, "predicateType": "urn:x"}, {**made, "subject": [{"name": "x"}]}):
        assert not checker.is_valid(wrong)


# ---- files that are not certificates --------------------------------------------------------------------------------


def altered(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A certificate with a change, in the canonical form."""
    made = json.loads(canonical(statement()))
    change(made)
    return (json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _said(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda made: made["predicate"].update(fields)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{}", b"null\n", b"[" * 1_000_000, b'{"predicate":' * 100_000, b"\xff\xfe", b"{" + b'"a":1,' * 1000,
        canonical(statement())[:-1], canonical(statement()) + b"\n", canonical(statement()).replace(b"\n", b"\r\n"),
        canonical(statement()).replace(b'{\n "_type"', b'{\n "_type": "x",\n "_type"', 1),
        canonical(statement()).replace(b'"exit_code": 0', b'"exit_code": 1,\n  "exit_code": 0', 1),
        altered(lambda made: made.update(more=1)),
        altered(lambda made: made.update(predicateType="urn:gguf-verify:certificate:2")),
        altered(lambda made: made.update(_type="https://in-toto.io/Statement/v0.1")),
        altered(lambda made: made["subject"].pop()), altered(lambda made: made["subject"].append(made["subject"][0])),
        altered(lambda made: made["subject"][0]["digest"].update(sha256="A" * 64)),
        altered(lambda made: made["subject"][0]["digest"].update(sha256="a" * 64 + "\n")),
        altered(_said(exit_code=1)), altered(_said(verdict="mismatch")),
        altered(_said(verdict="mismatch", exit_code=1)),
        altered(_said(verdict="waived")), altered(_said(verdict="interrupted", exit_code=130)),
        altered(_said(rungs=[])), altered(_said(not_climbed=["tokens"])), altered(_said(culprits={"kernel": 1})),
        altered(_said(finished="yesterday")), altered(_said(words=3)), altered(_said(more=3)),
        altered(lambda made: made["predicate"]["rungs"][2].update(verdict="failed", failures=1)),
        altered(lambda made: made["predicate"]["rungs"][2].update(failures=1)),
        altered(lambda made: made["predicate"]["rungs"][2].update(checked={})),
        altered(lambda made: made["predicate"]["rungs"].pop()),
        altered(lambda made: made["predicate"]["rungs"][0]["worst"].update(x="many")),
        altered(lambda made: made["predicate"]["model"].update(files=[])),
    ],
)  # fmt: skip
def test_files_that_are_not_certificates(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(raw)
    done = command_here("check-certificate", path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "is not a certificate" in done.stderr


def test_the_alterations_start_from_a_certificate() -> None:
    assert parse(altered(lambda made: None)) == statement()


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(NotACertificate, match=f"at most {MOST_BYTES:,} bytes"):
        read_certificate(path)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(UsageError):
            read_certificate(path)


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installation that the certificates of these tests are of."""
    monkeypatch.setattr(check, "installed", lambda: HERE)


@pytest.mark.usefixtures("_here")
def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    hostile = " ".join(HOSTILE).encode("utf-8", "backslashreplace").decode()
    made = altered(_said(words=hostile, command=hostile * 100))
    path = tmp_path / "c.json"
    path.write_bytes(made)
    done = command_here("check-certificate", path)
    assert done.returncode == 5
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 200 for line in done.stdout.splitlines())


# ---- what a comparison finds -----------------------------------------------------------------------------------------


def compared(folder: Path, made: Statement | None = None, **given: Any) -> Checked:
    made = made or statement()
    usual: dict[str, Any] = {"unsigned": True, "here": HERE}
    return compare(made, canonical(made), folder, **(usual | given))


def outcome(checked: Checked, what: str) -> str:
    (found,) = [line.outcome for line in checked.lines if line.what == what]
    return found


def test_everything_is_the_same(tmp_path: Path) -> None:
    checked = compared(files(tmp_path))
    assert {line.outcome for line in checked.lines} == {"matches"}
    assert len(checked.lines) == 5
    assert checked.exit_code == 0


@pytest.mark.parametrize("name", ["my.gguf", "kernels/my.cu", "kernels/parts/my.cuh"])
def test_each_file_counts(tmp_path: Path, name: str) -> None:
    folder = files(tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    assert compared(folder).exit_code == 1
    (folder / name).unlink()
    assert compared(folder).exit_code == 5


def opened(folder: Path, *paths: Path, **fields: Any) -> Statement:
    """The certificate of a run for whose kernel these files were opened as well."""
    found = report()
    files = {str(path): file_digest(path) for path in (folder / "kernels" / "my.cu", *paths)} | fields
    kernel = msgspec.structs.replace(found.environment.kernel, opened=OpenedFiles(files=files, packages={"torch": "2"}))
    found.environment = msgspec.structs.replace(found.environment, kernel=kernel)
    places = {str(folder / name): name for name in ("kernels/my.cu", "kernels/parts/my.cuh")}
    return statement(found, places=places)


def dependency(folder: Path, name: str = "kernels/deps/libimpl.so") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(path.name.encode())
    return path


def test_files_opened_for_the_kernel_count(tmp_path: Path) -> None:
    """The files that its loader and its compilers opened are compared like its own, and those of the system."""
    folder, of_system = files(tmp_path / "a"), Path(os.path.realpath("/usr/bin/env"))
    beside, elsewhere = dependency(folder), dependency(tmp_path, "home/libother.so")
    made = opened(folder, beside, elsewhere, of_system)
    said = made.predicate.kernel
    assert said.files == (
        "kernels/my.cu", "kernels/parts/my.cuh", "kernels/deps/libimpl.so", "outside/libother.so"
    )  # fmt: skip
    assert said.packages == {"torch": "2"}
    assert said.system == {str(of_system): file_digest(of_system)}
    assert canonical(made) == canonical(msgspec.json.decode(canonical(made), type=Statement))
    checked = compared(folder, made, kernel=[folder / "kernels" / "my.cu", elsewhere])
    assert {line.outcome for line in checked.lines} == {"matches"}
    assert checked.exit_code == 0
    assert compared(folder, made).exit_code == 5, "what lies outside of the kernel's folder is not looked for"
    beside.write_bytes(b"another")
    checked = compared(folder, made, kernel=[elsewhere])
    assert outcome(checked, "kernel: kernels/deps/libimpl.so") == "differs"
    assert checked.exit_code == 1


def test_no_file_takes_the_name_of_another(tmp_path: Path) -> None:
    """Also where the kernel has a folder `outside` of its own, with files of the names of others."""
    folder = files(tmp_path / "b")
    inside, elsewhere = dependency(folder, "kernels/outside/h.py"), dependency(tmp_path, "a/h.py")
    elsewhere.write_text("another")
    found = report()
    model = Path(found.environment.file.path).name
    of_model = [dependency(folder, f"kernels/{name}") for name in (model, f"model/{model}")]
    kernel = msgspec.structs.replace(
        found.environment.kernel,
        opened=OpenedFiles(files={str(path): file_digest(path) for path in (elsewhere, inside, *of_model)}),
    )
    found.environment = msgspec.structs.replace(found.environment, kernel=kernel)
    made = statement(found, places={str(folder / "kernels/my.cu"): "my.cu"})
    digests = {subject.name: subject.digest.sha256 for subject in made.subject}
    assert {file_digest(inside), file_digest(elsewhere)} <= {digests[name] for name in made.predicate.kernel.files}
    assert len(digests) == len(made.subject)


def test_another_file_of_the_system_is_not_checked(tmp_path: Path) -> None:
    folder, of_system = files(tmp_path), os.path.realpath("/usr/bin/env")
    for path, digest_ in (
        (of_system, "d" * 64),
        ("/usr/lib/no/such.so", "d" * 64),
        (str(tmp_path / "my.gguf"), "0" * 64),
    ):
        made = json.loads(canonical(opened(folder)))
        made["predicate"]["kernel"]["system"] = {path: digest_}
        checked = compared(folder, msgspec.convert(made, Statement))
        assert outcome(checked, "system") == "not checked"
        (line,) = [line for line in checked.lines if line.what == "system"]
        assert path in line.remark
        assert checked.exit_code == 5


def test_a_library_that_changed_during_a_run_is_not_certified(tmp_path: Path) -> None:
    folder = files(tmp_path)
    library = dependency(folder)
    for fields in ({str(library): "d" * 64}, {str(folder / "kernels" / "my.cu"): "d" * 64}):
        with pytest.raises(EnvironmentFault, match=r"no certificate: \S+ changed during the run"):
            opened(folder, library, **fields)


def test_unknown_opened_files_do_not_match(tmp_path: Path) -> None:
    folder = files(tmp_path)
    for fields, name in (
        ({"/proc/self/maps": None}, "files opened by its processes"),
        ({str(folder / "libgone.so"): None}, "libgone.so"), ({"what NVRTC 13.0 read": None}, "what NVRTC 13.0 read"),
    ):  # fmt: skip
        checked = compared(folder, opened(folder, **fields))
        assert outcome(checked, f"kernel: {name}") == "not checked"
        assert checked.exit_code == 5


def test_files_that_are_given(tmp_path: Path) -> None:
    folder = files(tmp_path / "a")
    empty = tmp_path / "b"
    empty.mkdir()
    model, kernel = folder / "my.gguf", folder / "kernels" / "my.cu"
    assert compared(empty).exit_code == 5
    assert compared(empty, model=[model], kernel=[kernel]).exit_code == 0, "what it includes lies beside it"
    assert compared(empty, model=[model], kernel=[model]).exit_code == 1
    assert compared(folder, model=[kernel]).exit_code == 1, (
        "a wrong file that is given is never replaced by a right one"
    )
    renamed = model.rename(folder / "renamed.gguf")
    assert compared(empty, model=[renamed], kernel=[kernel]).exit_code == 0
    with pytest.raises(UsageError):
        compared(empty, model=[tmp_path / "none"])


def test_a_given_file_that_is_another_is_a_mismatch_under_every_name(tmp_path: Path) -> None:
    folder = files(tmp_path)
    for name in ("my.cu", "other.cu"):
        other = folder / name
        other.write_bytes(KERNEL + b"!")
        checked = compared(folder, kernel=[other])
        assert checked.exit_code == 1
        assert any(line.outcome == "differs" for line in checked.lines)


def test_a_right_file_does_not_hide_a_wrong_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = files(tmp_path / "a")
    monkeypatch.chdir(files(tmp_path / "b"))
    wrong = Path("kernels", "my.cu")
    wrong.write_bytes(b"another")
    for given in ([wrong, folder / wrong], [folder / wrong, wrong]):
        assert compared(folder, kernel=given).exit_code == 1


def test_names_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = files(tmp_path / "a")
    (tmp_path / "my.gguf").write_bytes(MODEL)
    for name in ("../my.gguf", str(tmp_path / "my.gguf"), "x/../../my.gguf"):
        made = json.loads(canonical(statement()))
        made["subject"][0]["name"] = name
        made["predicate"]["model"]["files"] = [name]
        checked = compared(folder, msgspec.convert(made, Statement))
        assert outcome(checked, f"model: {name}") == "not checked"


def test_another_installation_is_reported(tmp_path: Path) -> None:
    folder = files(tmp_path)
    other = Project(version="0.2.0", sha256="d" * 64, files=3)
    for here in (Installed(other, LIBRARIES), Installed(HERE.project, {}), Installed(HERE.project, "not installed")):
        checked = compared(folder, here=here)
        assert checked.exit_code == 5
        assert sum(line.outcome == "not checked" for line in checked.lines) == 1


def test_without_a_signature_nothing_is_certain(tmp_path: Path) -> None:
    checked = compared(files(tmp_path), unsigned=False)
    assert outcome(checked, "signature") == "not checked"
    assert checked.exit_code == 5


def waived() -> Report:
    found = report(wrong=True)
    for rung in found.rungs:
        rung.waived = dict(rung.failing)
    found.waivers = [
        WaiverUse(what="a tensor", reason="known", until="2027-01-01", state="applied", failures=found.n_failures)
    ]
    return found


def test_a_verdict_that_is_none_does_not_pass(tmp_path: Path) -> None:
    folder = files(tmp_path)
    assert compared(folder, statement(report(wrong=True))).exit_code == 1
    assert compared(folder, statement(report(tensor="attn"))).exit_code == 5
    assert compared(folder, statement(unknown={"its modules": "not imported"})).exit_code == 5
    found = waived()
    assert found.verdict == "waived"
    assert compared(folder, statement(found)).exit_code == 5
    unverified = report()
    unverified.rungs[0].leave("x", "why")
    assert compared(folder, statement(unverified)).exit_code == 5


@pytest.mark.usefixtures("_here")
def test_the_command_fits_on_one_screen(tmp_path: Path) -> None:
    path = files(tmp_path) / "c.json"
    path.write_bytes(canonical(statement()))
    done = command_here("check-certificate", path, "--unsigned")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("CERTIFIED AND THE SAME: the certificate says VERIFIED\n")
    assert len(done.stdout.splitlines()) <= 30
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if not line.startswith("repeat"))


def test_flags_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(canonical(statement()))
    for flags in (["--signer", "me"], ["--signature", "x"], ["--unsigned", "--allowed-signers", "x"]):
        assert command_here("check-certificate", path, *flags).returncode == 2


@pytest.mark.parametrize(
    "flags",
    [
        ["--sign-with", "key"], ["--certificate", "{0}/c.json", "--sign-with", "{0}/none"],
        ["--certificate", "{0}/c.json", "--identify"], ["--certificate", "{0}/c.json", "-o", "{0}/c.json"],
        ["--certificate", "{0}/none/c.json"], ["--certificate", "{0}/c.json", "--only-call", "own,m=1,n=1,k=1"],
    ],
)  # fmt: skip
def test_runs_that_cannot_be_certified_are_refused_at_once(tmp_path: Path, flags: list[str]) -> None:
    given = [flag.format(tmp_path) for flag in flags]
    done = command_here(ROOT / "fixtures" / "tiny-Q4_0.gguf", *given)
    assert done.returncode == 2, done.stderr
    assert list(tmp_path.iterdir()) == []
