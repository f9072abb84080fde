"""Text generation: engines, logit processors, the sampling loop, beam search, and checkpoints loaded for generation."""
