"""Kneser-Ney n-grams of token ids: counts, nats, distributions over the vocabulary, and files of counts."""
