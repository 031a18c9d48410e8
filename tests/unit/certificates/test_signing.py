"""Signatures of certificates by ssh-keygen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gguf_verify.certificates import check
from gguf_verify.certificates.check import Signature, compare
from gguf_verify.certificates.read import canonical
from gguf_verify.certificates.signing import MOST_SIGNATURE, sign, verify
from gguf_verify.support.errors import EnvironmentFault, HarnessError
from tests.support.certificates import HERE, allowed, files, key, statement
from tests.support.tools import command_here

pytestmark = pytest.mark.needs("ssh-keygen")


def signed(folder: Path, content: bytes, with_key: Path) -> Path:
    path = folder / "c.json.sig"
    path.write_bytes(sign(content, with_key))
    return path


def test_a_good_signature(tmp_path: Path) -> None:
    mine = key(tmp_path)
    content = canonical(statement())
    signature, signers = signed(tmp_path, content, mine), allowed(tmp_path, me=mine)
    assert verify(content, signature, signers).signer == "me@example.org"
    assert verify(content, signature, signers, "me@example.org").good
    checked = compare(
        statement(), content, files(tmp_path), signature=Signature(signature, signers), here=HERE
    )  # fmt: skip
    assert checked.exit_code == 0


def test_a_signature_is_bound_to_every_byte(tmp_path: Path) -> None:
    mine = key(tmp_path)
    content = canonical(statement())
    signature, signers = signed(tmp_path, content, mine), allowed(tmp_path, me=mine)
    for other in (content + b"\n", content[:-1], content.replace(b"0.1.0", b"0.1.1", 1), b""):
        assert not verify(other, signature, signers).good
    checked = compare(
        statement(), content + b" ", files(tmp_path), signature=Signature(signature, signers), here=HERE
    )  # fmt: skip
    assert checked.exit_code == 1


def test_other_keys_names_and_namespaces_do_not_count(tmp_path: Path) -> None:
    mine, other = key(tmp_path), key(tmp_path, "other")
    content = canonical(statement())
    signature = signed(tmp_path, content, mine)
    assert not verify(content, signature, allowed(tmp_path, other=other)).good
    both = allowed(tmp_path, me=mine, other=other)
    assert not verify(content, signature, both, "other@example.org").good
    assert not verify(content, signature, both, "-Y").good
    (tmp_path / "c.json").write_bytes(content)
    line = ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(mine), str(tmp_path / "c.json")]
    signature.unlink()
    subprocess.run(line, check=True, capture_output=True, timeout=60)
    assert signature.is_file()
    assert not verify(content, signature, both).good


@pytest.mark.parametrize("raw", [b"", b"no signature", b"-----BEGIN SSH SIGNATURE-----\n", b"x" * (MOST_SIGNATURE + 1)])
def test_invalid_signatures(tmp_path: Path, raw: bytes) -> None:
    mine = key(tmp_path)
    path = tmp_path / "c.json.sig"
    path.write_bytes(raw)
    if len(raw) > MOST_SIGNATURE:
        with pytest.raises(HarnessError, match="at most"):
            verify(b"", path, allowed(tmp_path, me=mine))
    else:
        assert not verify(b"", path, allowed(tmp_path, me=mine)).good


def test_the_command_checks_a_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "installed", lambda: HERE)
    mine, other = key(tmp_path), key(tmp_path, "other")
    path = files(tmp_path) / "c.json"
    path.write_bytes(canonical(statement()))
    signed(tmp_path, path.read_bytes(), mine)
    done = command_here("check-certificate", path, "--allowed-signers", allowed(tmp_path, me=mine))
    assert done.returncode == 0, done.stdout
    assert "matches     signature: good, by me@example.org" in done.stdout
    done = command_here("check-certificate", path, "--allowed-signers", allowed(tmp_path, other=other))
    assert done.returncode == 1
    assert "differs     signature: no allowed signer has this key" in done.stdout
    done = command_here("check-certificate", path, "--allowed-signers", tmp_path / "none")
    assert done.returncode == 2


def test_an_invalid_key_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(EnvironmentFault, match="did not sign"):
        sign(b"x", tmp_path / "key")
