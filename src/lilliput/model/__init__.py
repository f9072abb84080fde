"""The transformer models (token ids in, logits out), their key-value cache, and their parameter and FLOP counts."""
