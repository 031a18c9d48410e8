"""q8_1: quantized weights times activations quantized to Q8_1.

On Hopper the choices follow measurements on one H200, which the benchmark of the kernels repeats (it reports where
another kernel was faster). The others follow from the instructions of a GPU and from the ladder at M = 512; they were
not measured for each shape.
"""

from __future__ import annotations

from ..family import Family

FAMILY = Family("q8_1", "the fastest q8_1 kernel for each product")
