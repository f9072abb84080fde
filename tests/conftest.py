"""Nothing global but what keeps tests fast and the same every time."""

import atexit
import os
import shutil
import tempfile

import torch
from hypothesis import settings

# What is measured of the machine is remembered between runs: not here, and not from the user's own. Processes that share the
# tests share it, so that code is compiled once.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

torch.set_num_threads(1)  # tiny shapes are slower on two
settings.register_profile("proofs", deadline=None, derandomize=True, database=None)  # no clock, no chance, no files
settings.load_profile("proofs")
