"""The options `--certificate FILE` and `--sign-with KEY` of `verify`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...certificates.make import certify
from ...certificates.materials import Materials, collect
from ...certificates.read import canonical
from ...certificates.signing import check_signing, sign, signature_path
from ...kernels.foreign.names import Further
from ...results.report import Report
from ...support.errors import EXIT_ENVIRONMENT, HarnessError, UsageError, say
from ...support.files import expect_no_input, write_output
from ...support.text import printable
from ..common import check_kernel
from ..files import check_outputs


@dataclass(frozen=True)
class Certificates:
    """The certificate that was requested for a run, and the digests that were collected before the run.

    Args:
        path: file of the certificate.
        key: private key to sign it with; None not to sign.
        kernel, further: the kernel and its other files, as they were typed.
        rungs: the requested rungs; None for all.
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
        """Collect the digests before the run; None if no certificate is requested.

        Raises UsageError if the certificate cannot be written or signed, and EnvironmentFault if llama.cpp or the
        project's files cannot be read.
        """
        path, key, kernel = args.certificate, args.sign_with, args.kernel
        if path is None:
            if key is not None:
                raise UsageError("--sign-with needs --certificate FILE: the file to sign")
            return None
        if key is not None:
            check_outputs([*args.outputs, ("--sign-with", signature_path(path))], args.inputs)
            check_signing(key)
        return cls(path, key, kernel, further, None if rungs is None else tuple(rungs), collect(kernel, further))

    def write(self, report: Report, exit_code: int) -> int:
        """Write the certificate and its signature.

        A certificate or signature of an earlier run is removed first, so that none stays beside a new verdict. Returns
        `exit_code`; if nothing could be written, prints why and returns 3 in place of 0.
        """
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
