"""Verify a GGUF model: python scripts/verify_model.py model-Q4_0.gguf. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))

from gguf_verify.cli import main

if __name__ == "__main__":
    sys.exit(main())
