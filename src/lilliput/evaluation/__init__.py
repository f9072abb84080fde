"""Evaluation of a trained model: likelihood, labels, overlap with references, generated texts, and baselines."""
