"""Containers: files and folders that hold named tensors, read without trusting a byte of them."""

from qassay.containers.gguf_metadata import MetadataArray
from qassay.containers.opening import open_container
from qassay.containers.sources import MmapSource

__all__ = ["MetadataArray", "MmapSource", "open_container"]
