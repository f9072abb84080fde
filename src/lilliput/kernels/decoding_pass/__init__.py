"""The decoding pass: one forward pass over a few tokens as machine code (loops, layout, KV slots, threads)."""
