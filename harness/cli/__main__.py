"""`python -m harness.cli`."""

import sys

from . import main

sys.exit(main())
