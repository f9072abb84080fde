"""The environment of all tests: pinned variables, and a check that no test changes global state.

Tests run in a random order (pytest-randomly prints its seed; repeat an order with `-p randomly --randomly-seed=SEED`).
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from helpers.error_format import check_every_error

# Set by users, terminals, CI systems and launchers, and read by Lilliput or by a library that it uses.
REMOVED_PREFIXES = ("WANDB_", "HF_", "TRACKIO_", "TORCHELASTIC_", "GROUP_", "ROLE_", "CLICOLOR")
REMOVED = {
    *("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES", "TIKTOKEN_CACHE_DIR", "MPLBACKEND"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LANGUAGE", "LANG"),
    *("PYTHONIOENCODING", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "INPUTRC"),
}
BY_LIBRARIES = ("PYTEST_CURRENT_TEST", "_TORCHINDUCTOR_", "KMP_", "WANDB_SERVICE", "WANDB_ERROR_REPORTING")
# Steps are not timed: a choice by measurement would differ from run to run. Tests of it pass or remove the variable.
PINNED = {"COLUMNS": "80", "TERM": "xterm", "LC_ALL": "C.UTF-8", "TZ": "UTC", "LILLIPUT_TIME_STEPS": "0"}

# Measurements of the machine and compiled code are kept in a folder of this session, which all its processes share.
if "PYTEST_XDIST_WORKER" not in os.environ:
    for name in [name for name in os.environ if name in REMOVED or name.startswith(REMOVED_PREFIXES)]:
        del os.environ[name]
    os.environ.update(PINNED)
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.environ["XDG_CACHE_HOME"], "torchinductor")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
    os.umask(0o022)
    # A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C would have no effect on them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

torch.set_num_threads(1)  # small shapes are slower with two
settings.register_profile("deterministic", deadline=None, derandomize=True, database=None)
settings.load_profile("deterministic")
check_every_error()


def global_state() -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "working directory": os.getcwd(),
        **{f"${name}": value for name, value in os.environ.items() if not name.startswith(BY_LIBRARIES)},
        "umask": umask,
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "torch threads": torch.get_num_threads(),
        "torch default type": torch.get_default_dtype(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch gradients": torch.is_grad_enabled(),
    }


@pytest.fixture(autouse=True)
def no_state_is_left_behind() -> Iterator[None]:
    before, recursion_limit = global_state(), sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(recursion_limit)  # torch.compile raises it if its cache is empty
    after = global_state()
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    if changed:
        pytest.fail(f"the test did not restore: {', '.join(changed)}")  # without values, which may be secrets
