"""Doing the work: plan chunks, read them on threads, add up, ask the rules."""
