"""`python -m tests.fuzz …` is `gguf-verify measure fuzz …`."""

import sys

from gguf_verify.cli import main

if __name__ == "__main__":
    sys.exit(main(["measure", "fuzz", *sys.argv[1:]]))
