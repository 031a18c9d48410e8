"""Definitions of the quantized product, their exact results and bounds, and the gates that judge an output.

It imports `formats` and `support`. A definition is composed of an encoding of the activations
(`encodings/`) and a term (`terms/`); those with a name of their own are the modules of `definitions/`.
"""

from .declared import DECLARABLE, IN_TENSOR_CORES, composed, declaration, declared
from .definition import OWN, Oracle, Semantics, by_oracle, quantized_inside
from .definitions import SEMANTICS, llama_cpu_semantics
from .definitions.f32 import F32
from .definitions.q8_1 import Q8_1_RAW
from .encoding import Encoding
from .encodings import ENCODINGS
from .encodings.float16 import FLOAT16
from .epilogue import Epilogue
from .exact import UNIT_ROUNDOFF, Product, gamma, product
from .gates import SCORE_LIMIT, Judgement, judge
from .order import ASCENDING, Order
from .result import exact_result
from .screen import screened
from .term import Term
from .terms import TERMS

__all__ = [
    "ASCENDING",
    "DECLARABLE",
    "ENCODINGS",
    "F32",
    "FLOAT16",
    "IN_TENSOR_CORES",
    "OWN",
    "Q8_1_RAW",
    "SCORE_LIMIT",
    "SEMANTICS",
    "TERMS",
    "UNIT_ROUNDOFF",
    "Encoding",
    "Epilogue",
    "Judgement",
    "Oracle",
    "Order",
    "Product",
    "Semantics",
    "Term",
    "by_oracle",
    "composed",
    "declaration",
    "declared",
    "exact_result",
    "gamma",
    "judge",
    "llama_cpu_semantics",
    "product",
    "quantized_inside",
    "screened",
]
