"""Definitions of the quantized product, their exact oracles, and the gates that judge an output against them."""

from .definitions import (
    F32,
    OWN,
    Q8_0_CPU,
    Q8_1_CPU,
    Q8_1_RAW,
    SEMANTICS,
    Oracle,
    Semantics,
    by_oracle,
    llama_cpu_semantics,
    quantized_inside,
)
from .exact import UNIT_ROUNDOFF, Product, exact_result, gamma, product
from .gates import SCORE_LIMIT, Judgement, judge
from .order import ASCENDING, Order

__all__ = [
    "ASCENDING",
    "F32",
    "OWN",
    "Q8_0_CPU",
    "Q8_1_CPU",
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
    "exact_result",
    "gamma",
    "judge",
    "llama_cpu_semantics",
    "product",
    "quantized_inside",
]
