"""Techniques side by side: a grid of settings times seeds, at an equal budget, measured and reported."""
