"""One forward pass over a few tokens in machine code: loops, weights layout, KV slots, threads."""
