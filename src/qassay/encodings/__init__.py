"""How bytes stand for numbers: one file a family, each encoding declared once.

A declaration gives the stored fields and one formula; block size, bits per weight, unpacking,
health tables, offsets in messages, the fast decoder and the documentation follow from it.
"""

from qassay.encodings.base import BlockEncoding, Encoding, PlainEncoding
from qassay.encodings.registry import all_encodings, by_id, for_stored_type

__all__ = [
    "BlockEncoding",
    "Encoding",
    "PlainEncoding",
    "all_encodings",
    "by_id",
    "for_stored_type",
]
