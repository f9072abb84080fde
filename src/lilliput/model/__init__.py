"""Integers in, logits out: the model family, its cache and its counts. Knows neither text nor training."""
