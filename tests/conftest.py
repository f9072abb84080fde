"""Nothing global but what keeps tests fast and the same every time."""

import torch
from hypothesis import settings

torch.set_num_threads(1)  # tiny shapes are slower on two
settings.register_profile("proofs", deadline=None, derandomize=True, database=None)  # no clock, no chance, no files
settings.load_profile("proofs")
