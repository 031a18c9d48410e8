"""Signatures of certificates by OpenSSH: `ssh-keygen -Y sign` and `-Y verify` (ssh-keygen(1), PROTOCOL.sshsig).

A signature is over the certificate's exact bytes and over the namespace, so that it is good for nothing else. It lies
beside the certificate as FILE.sig. Who may sign is listed in a file of allowed signers (ssh-keygen(1), ALLOWED
SIGNERS).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..support.errors import EnvironmentFault, UsageError
from ..support.text import printable
from .read import read_bytes

NAMESPACE = "gguf-verify"
#: Bytes of a signature, and of a list of allowed signers, at most.
MOST_SIGNATURE, MOST_SIGNERS = 1 << 16, 1 << 20
#: Seconds; somebody may have to type a passphrase or to touch a key.
_PATIENCE = 300.0


@dataclass(frozen=True)
class Signed:
    """What is known of a signature: whether it is good, by whom ("" for nobody known), and why not, in words."""

    good: bool
    signer: str
    why: str = ""


def signature_path(certificate: Path) -> Path:
    """FILE.sig."""
    return certificate.with_name(f"{certificate.name}.sig")


def check_signing(key: Path) -> None:
    """That `sign` can be tried. Raises UsageError where there is no such key, EnvironmentFault without ssh-keygen."""
    _program()
    if not key.is_file() or not os.access(key, os.R_OK):
        raise UsageError(f"--sign-with: cannot read the key {printable(str(key))}")


def sign(content: bytes, key: Path) -> bytes:
    """A signature of these bytes. Raises EnvironmentFault with what ssh-keygen said."""
    done = _run(["-Y", "sign", "-n", NAMESPACE, "-f", os.path.abspath(key)], content)
    if done.returncode != 0 or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise EnvironmentFault(f"ssh-keygen did not sign: {_last(done.stderr)}")
    return done.stdout


def verify(content: bytes, signature: Path, allowed: Path, signer: str = "") -> Signed:
    """Whether a signature is that of an allowed signer over these bytes.

    Args:
        signer: the name that must have signed; "" for any of `allowed`.

    Raises UsageError where a file cannot be read, EnvironmentFault without ssh-keygen.
    """
    _program()
    with tempfile.TemporaryDirectory(prefix="gguf-verify-") as folder:
        sig, signers = Path(folder, "sig"), Path(folder, "signers")  # read once, and bounded
        sig.write_bytes(read_bytes(signature, "signature", MOST_SIGNATURE))
        signers.write_bytes(read_bytes(allowed, "list of allowed signers", MOST_SIGNERS))
        of = ["-s", str(sig), "-f", str(signers)]
        if signer:
            names = [signer]
        else:
            found = _run(["-Y", "find-principals", *of], b"")
            if found.returncode != 0:
                return Signed(False, "", "no allowed signer has this key, or it is no signature")
            names = found.stdout.decode(errors="replace").splitlines()
        said = b""
        for name in names:
            done = _run(["-Y", "verify", "-n", NAMESPACE, "-I", name, *of], content)
            if done.returncode == 0:
                return Signed(True, name)
            said = done.stdout + done.stderr
        return Signed(False, "", _last(said) or "ssh-keygen gives no reason")


def available() -> bool:
    """Whether ssh-keygen is installed."""
    return shutil.which("ssh-keygen") is not None


def _program() -> str:
    found = shutil.which("ssh-keygen")
    if found is None:
        raise EnvironmentFault("ssh-keygen is not installed, which signs and verifies (OpenSSH 8.2 or newer)")
    return found


def _run(arguments: list[str], given: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [_program(), *arguments], input=given, capture_output=True, timeout=_PATIENCE, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"ssh-keygen did not answer: {type(error).__name__}") from None


def _last(said: bytes) -> str:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return printable(lines[-1], 200) if lines else ""
