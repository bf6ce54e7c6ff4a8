"""Collectors: read a chunk of a tensor once and return what there is to know about it."""

from __future__ import annotations

from qassay.encodings.base import BlockEncoding, Encoding, PlainEncoding
from qassay.kernels.chunk import Front
from qassay.kernels.collect_blocks import BlockCollector
from qassay.kernels.collect_values import ValueCollector
from qassay.kernels.geometry import Geometry
from qassay.kernels.select import Kernels

__all__ = ["BlockCollector", "ValueCollector", "make_collector"]


def make_collector(
    encoding: type[Encoding], geometry: Geometry, kernels: Kernels, front: Front, *, all_codes: bool
) -> BlockCollector | ValueCollector:
    """Return the collector of a tensor's encoding."""
    if issubclass(encoding, BlockEncoding):
        return BlockCollector(encoding, geometry, kernels, front, all_codes)
    if issubclass(encoding, PlainEncoding):
        return ValueCollector(encoding, geometry, kernels)
    raise TypeError(f"no collector reads {encoding.__name__}")
