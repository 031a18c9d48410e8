"""Reports: they read result records and compute nothing."""
