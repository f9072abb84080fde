"""Restarts by torchrun: which job resumes a run automatically.

Owns: the name of the torchrun that started this process, and the file in a run's folder that lists those that
trained it last. Does not own: how a run is resumed (`run_start`), the process group (`process_group`).

torchrun restarts its processes when one is lost or a machine joins, and does not always count the restart. The
new processes have the same command line. They must not stop because the run exists already, and must not
overwrite it. So each run lists the torchruns (one per machine) that trained it last, and a process group that
was started by one of them resumes the run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from lilliput.storage.atomic_files import write_whole
from lilliput.storage.run_folders import RunFolder, looks_like_run

LAUNCH = ".launch"  # the file of a run that lists the torchruns that trained it last, one per line


def torchrun_name(environment: Mapping[str, str]) -> str | None:
    """Return the name of the torchrun that started this process, the same through all its restarts; None without one.

    It consists of the host and the folder that torchrun creates for each job, or its process id where torchrun creates no
    folder (`--log-dir /dev/null`). The job id is not used: a user can choose the same one for two jobs.
    """
    if environment.get("TORCHELASTIC_RUN_ID") is None:
        return None
    errors = environment.get("TORCHELASTIC_ERROR_FILE")  # FOLDER/attempt_N/local rank/error.json
    return f"{socket.gethostname()} {Path(errors).parents[2] if errors else os.getppid()}"


def was_trained_by(folder: Path, launches: set[str]) -> bool:
    """Return whether one of these torchruns trained the run in `folder` last."""
    try:
        return looks_like_run(folder) and not launches.isdisjoint((folder / LAUNCH).read_text("utf-8").splitlines())
    except (OSError, ValueError):
        return False


def save_launches(run: RunFolder, launches: set[str]) -> None:
    """Write the list of torchruns into the run. Call it at every start: after a restart, the first process may be on another
    machine."""
    if launches:
        write_whole(run.folder / LAUNCH, "\n".join(sorted(launches)).encode())
