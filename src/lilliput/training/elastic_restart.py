"""Restart after a lost worker: which job of torchrun may resume a run without being asked to.

Owns: the name of the torchrun that started this process, and the file in a run's folder that lists those that
trained it last. Does not own: how a run is resumed (`run_start`), the process group (`process_group`).

torchrun restarts its processes when one is lost or a machine joins, and does not always count the restart. The
new processes have the command line of the old ones. They must neither refuse the run that those created nor,
where the command replaces an existing run, destroy it. So each run lists the torchruns (one per machine) that
trained it last, and a group that shares one of them with the list resumes the run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from lilliput.storage.atomic_files import write_whole
from lilliput.storage.run_folders import Run, looks_like_run

LAUNCH = ".launch"  # the file of a run that lists the torchruns that trained it last, one per line


def torchrun_name(environment: Mapping[str, str]) -> str | None:
    """Return the name of the torchrun that started this process, the same through all its restarts; None without one.

    It consists of the host and the folder that torchrun makes for each job. Its job id may be chosen by a user, who can
    choose the same for the next job; its restart count omits restarts for a machine that joins. With `--log-dir /dev/null`
    there is no folder, but still a parent process.
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


def save_launches(run: Run, launches: set[str]) -> None:
    """List these torchruns in the run. At every start: the next first process may be on another machine."""
    if launches:
        write_whole(run.folder / LAUNCH, "\n".join(sorted(launches)).encode())
