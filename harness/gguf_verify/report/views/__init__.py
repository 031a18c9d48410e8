"""Results in Python and in notebooks: each module defines one `support.shown.View`."""
