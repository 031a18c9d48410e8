"""`--certificate FILE` and `--sign-with KEY` of `verify`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..certificates import Materials, canonical, certify, collect
from ..certificates.signing import check_signing, sign, signature_path
from ..kernels.foreign.opening import Further
from ..results import Report
from ..support.errors import EXIT_ENVIRONMENT, HarnessError, UsageError, say
from ..support.files import expect_no_input, write_output
from ..support.text import printable
from .common import check_kernel
from .files import check_outputs


@dataclass(frozen=True)
class Certificates:
    """The certificate that a run was asked for, and what was collected before the run.

    Args:
        path: of the certificate.
        key: to sign it with; None not to sign.
        kernel, further: as they were typed.
        rungs: that were asked for; None for all.
        before: digests of everything that the verdict depends on.
    """

    path: Path
    key: Path | None
    kernel: str
    further: Further
    rungs: tuple[str, ...] | None
    before: Materials

    @classmethod
    def asked_for(cls, args: argparse.Namespace, rungs: Sequence[str] | None, further: Further) -> Certificates | None:
        """None where none was asked for. Raises UsageError where it cannot be written or signed, EnvironmentFault where
        llama.cpp or the project's files cannot be read."""
        path, key, kernel = args.certificate, args.sign_with, args.kernel
        if path is None:
            if key is not None:
                raise UsageError("--sign-with signs a certificate: name its file by --certificate")
            return None
        if key is not None:
            check_outputs({**args.outputs, "--sign-with": signature_path(path)}, args.inputs)
            check_signing(key)
        return cls(path, key, kernel, further, None if rungs is None else tuple(rungs), collect(kernel, further))

    def write(self, report: Report, exit_code: int) -> int:
        """Write it, and its signature. Returns the exit code: `exit_code`, but 3 in place of 0 where it was not
        written, which is said. A certificate or signature of an earlier run does not stay in its place."""
        signature = signature_path(self.path)
        try:
            for made in (signature, self.path):
                check_kernel(made, report)
            for old in (signature, self.path):
                expect_no_input(old)
                if not old.is_symlink() and old.is_file():
                    old.unlink()
            after = collect(self.kernel, self.further)
            content = canonical(certify(report, self.before, after, self.rungs, self.kernel))
            write_output(self.path, content)
            if self.key is not None:
                write_output(signature, sign(content, self.key))
        except HarnessError as error:
            say(str(error))
            return exit_code or EXIT_ENVIRONMENT
        except OSError as error:
            say(f"cannot write {printable(str(self.path))}: {error.strerror}")
            return exit_code or EXIT_ENVIRONMENT
        return exit_code
