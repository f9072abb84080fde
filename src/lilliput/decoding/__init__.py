"""A model that writes: processors, choosers, the one loop, and what is loaded from a checkpoint to use them."""
