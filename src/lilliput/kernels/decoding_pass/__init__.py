"""The decoding pass: one forward pass over a few tokens as compiled code (loops, layout, KV slots, threads)."""
