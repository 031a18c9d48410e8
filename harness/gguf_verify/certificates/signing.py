"""Signatures of certificates by OpenSSH: `ssh-keygen -Y sign` and `-Y verify` (ssh-keygen(1), PROTOCOL.sshsig).

A signature covers the certificate's exact bytes and the namespace, so that it is valid for nothing else. It lies beside
the certificate as FILE.sig. The allowed signers are listed in a file (ssh-keygen(1), ALLOWED SIGNERS).
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
#: Size limits in bytes of a signature, and of a list of allowed signers.
MOST_SIGNATURE, MOST_SIGNERS = 1 << 16, 1 << 20
#: Time limit in seconds; the user may have to type a passphrase or touch a key.
_PATIENCE = 300.0


@dataclass(frozen=True)
class Signed:
    """The result of checking a signature: whether it is good, its signer ("" if unknown), and why it is not good."""

    good: bool
    signer: str
    why: str = ""


def signature_path(certificate: Path) -> Path:
    """Return FILE.sig."""
    return certificate.with_name(f"{certificate.name}.sig")


def check_signing(key: Path) -> None:
    """Check that `sign` can be tried. Raises UsageError without the key, EnvironmentFault without ssh-keygen."""
    _program()
    if not key.is_file() or not os.access(key, os.R_OK):
        raise UsageError(f"--sign-with: cannot read the key {printable(str(key))}")


def sign(content: bytes, key: Path) -> bytes:
    """Sign bytes. Raises EnvironmentFault with ssh-keygen's message."""
    done = _run(["-Y", "sign", "-n", NAMESPACE, "-f", os.path.abspath(key)], content)
    if done.returncode != 0 or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise EnvironmentFault(f"ssh-keygen did not sign: {_last(done.stderr)}")
    return done.stdout


def verify(content: bytes, signature: Path, allowed: Path, signer: str = "") -> Signed:
    """Check whether a signature over these bytes is by an allowed signer.

    Args:
        signer: name of the required signer; "" for any in `allowed`.

    Raises UsageError if a file cannot be read, EnvironmentFault without ssh-keygen.
    """
    _program()
    with tempfile.TemporaryDirectory(prefix="gguf-verify-") as folder:
        sig, signers = (
            Path(folder, "sig"),
            Path(folder, "signers"),
        )  # private copies: each file is read once, size-limited
        sig.write_bytes(read_bytes(signature, "signature", MOST_SIGNATURE))
        signers.write_bytes(read_bytes(allowed, "list of allowed signers", MOST_SIGNERS))
        of = ["-s", str(sig), "-f", str(signers)]
        if signer:
            names = [signer]
        else:
            found = _run(["-Y", "find-principals", *of], b"")
            if found.returncode != 0:
                return Signed(False, "", "no allowed signer has this key, or the file is not a signature")
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
        raise EnvironmentFault("ssh-keygen (OpenSSH 8.2 or newer), needed to sign and verify, is not installed")
    return found


def _run(arguments: list[str], given: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [_program(), *arguments],
            input=given,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"ssh-keygen did not answer: {type(error).__name__}") from None


def _last(said: bytes) -> str:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return printable(lines[-1], 200) if lines else ""
