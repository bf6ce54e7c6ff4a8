"""Words shared by every layer: findings, tensors, statistics, errors. Imports nothing above it."""
