"""Numbers that bound what a user can ask for."""

from __future__ import annotations

MOST_JOBS = 1024
"""Threads; more than that is a slip of the keyboard."""
