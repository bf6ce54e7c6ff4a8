"""The Linears of a model, from headers, from a `config.json` alone, or from a table of shapes."""

from qassay.runtimes.shapes.linear import Linear, Shapes

__all__ = ["Linear", "Shapes"]
