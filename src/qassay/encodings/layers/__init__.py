"""Weights that are kept in several tensors: one file a family, each declared once.

A checkpoint of GPTQ, AWQ, compressed-tensors, FP8, NVFP4 or MXFP4 stores one matrix as packed
codes, scales, zero points and indexes. Here they are put together to *layers*, and every layer
can be brought to one canonical form, whatever its packing.
"""

from qassay.encodings.layers.assemble import Assembly, assemble
from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module, Part, Role
from qassay.encodings.layers.canonical import Canonical
from qassay.encodings.layers.claims import Claims, LayerClaim, claims_of

__all__ = [
    "Assembly",
    "Canonical",
    "Claims",
    "Fit",
    "Layer",
    "LayerClaim",
    "LayerEncoding",
    "Module",
    "Part",
    "Role",
    "assemble",
    "claims_of",
]
