"""Definitions of the quantized product, their exact results and bounds, and the gates that judge an output.

It imports `formats` and `support`. A definition is one module of `definitions/`.
"""

from .declared import declared
from .definition import OWN, Oracle, Semantics, by_oracle, quantized_inside
from .definitions import SEMANTICS, llama_cpu_semantics
from .definitions.f32 import F32
from .definitions.q8_1 import Q8_1_RAW
from .exact import UNIT_ROUNDOFF, Product, exact_result, gamma, product
from .gates import SCORE_LIMIT, Judgement, judge
from .order import ASCENDING, Order

__all__ = [
    "ASCENDING",
    "F32",
    "OWN",
    "Q8_1_RAW",
    "SCORE_LIMIT",
    "SEMANTICS",
    "UNIT_ROUNDOFF",
    "Judgement",
    "Oracle",
    "Order",
    "Product",
    "Semantics",
    "by_oracle",
    "declared",
    "exact_result",
    "gamma",
    "judge",
    "llama_cpu_semantics",
    "product",
    "quantized_inside",
]
