"""Whose fault is a wrong output? Each hypothesis predicts it, and is tested for equality."""
