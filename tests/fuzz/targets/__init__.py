"""The fuzz targets: each module defines one `Target` or more."""
