"""`python -m tests.fuzz …` is `python -m tools.measure fuzz …`."""

import sys

from tools.measure.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["fuzz", *sys.argv[1:]]))
