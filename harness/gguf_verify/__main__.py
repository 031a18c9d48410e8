"""`python -m gguf_verify …` is the command `gguf-verify …`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
