"""The version of qassay, as `pyproject.toml` states it; a test compares the two."""

__version__ = "0.1.0"
