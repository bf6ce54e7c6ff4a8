"""Two models side by side: which weights belong together, and whether they hold the same."""
