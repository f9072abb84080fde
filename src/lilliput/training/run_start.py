"""How a run begins: new, resumed, or from another run's weights.

Owns: which of the three it is, what a run keeps when it goes on, which job of torchrun may go on with it
unasked, and refusing, before any work is done, what does not fit. Does not own: making what trains
(`session`), the processes (`process_group`).

torchrun starts processes again when one was lost or a machine has come, and does not always count it. The new
ones have the command line of the old ones, and must neither refuse the run that those made nor, with
--overwrite, destroy it. So a run's folder has the names of the torchruns (one on each machine) that trained
it last, and a group that shares one with it goes on.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.data.tokenizers import learns
from lilliput.errors import UserError
from lilliput.settings.loading import as_begun, config_to_dict, replace, without_removed
from lilliput.settings.tree import Config
from lilliput.storage.atomic_files import write_whole
from lilliput.storage.checkpoints import CONFIG, Checkpoint
from lilliput.storage.run_folders import Run, differences, looks_like_run, resolve_checkpoint
from lilliput.training.process_group import World

# Settings that may be left to what is found in the data; a run's own config.json has them.
FOUND = ("model.vocab_size", "model.classes", "vectors.width", "vectors.rows")
# Settings that a resumed run may have otherwise: its folder may be moved and renamed, its processes spread in another way.
FREE = ("name", "log.folder", "train.parallel")
LAUNCH = ".launch"  # the file of a run with the torchruns that trained it last, one a line


@dataclass
class RunStart:
    """What the first process finds out for all of them. `origin` is the checkpoint of another run, `checkpoint` the one whose
    weights are taken."""

    run: Run
    config: Config
    resumed: bool
    origin: Checkpoint | None
    checkpoint: Checkpoint | None
    notes: list[str]

    def tokenizer(self) -> str | None:
        """One that came from files is in the run's checkpoints, too; by now they may have changed, or be gone."""
        if self.checkpoint is None or learns(self.config.tokenizer):
            return None
        return self.checkpoint.tokenizer_json()


def find_start(
    folder: Path,
    config: Config,
    resume: bool,
    overwrite: bool,
    start_from: str | None,
    world: World,
    stack: ExitStack,
) -> RunStart:
    """By the first process. A run that goes on is locked for as long as `stack` is open."""
    notes: list[str] = []
    origin = resolve_checkpoint(start_from, config.log.folder) if start_from else None
    if origin:
        config = adopt(config, origin)
    launches = world.launches()
    if resume or launches_of(folder) & launches:
        run, config = same_run(folder, config)
        stack.enter_context(run.lock())
        remember(run, launches)
        return RunStart(run, config, True, None, newest_checkpoint(run, notes), notes)
    if looks_like_run(folder) and not overwrite:
        Run.create(folder, {}, overwrite=False)
    return RunStart(Run(folder), config, False, origin, origin, notes)


def launches_of(folder: Path) -> set[str]:
    """The torchruns that trained the run last: they alone may go on with it unasked."""
    try:
        return set((folder / LAUNCH).read_text("utf-8").splitlines()) if looks_like_run(folder) else set()
    except (OSError, ValueError):
        return set()


def remember(run: Run, launches: set[str]) -> None:
    """At every start: the machine of the next first process need not be that of the first."""
    if launches:
        write_whole(run.folder / LAUNCH, "\n".join(sorted(launches)).encode())


def same_run(folder: Path, config: Config) -> tuple[Run, Config]:
    """The run to resume, if these are its settings; and those, with all that was found when it began."""
    run, found = Run.open(folder), dict[str, Any]()
    saved = as_begun(run.config(), str(folder / CONFIG))
    for name, (was, now) in differences(saved, config_to_dict(config)).items():
        if name in FOUND and now is None:
            found[name] = was
        elif name not in FREE:
            what = f"{name} was {was} when run {run.name} began and is {now} now: a resumed run keeps its settings"
            raise UserError(what, str(folder), f"--name NEW --from {folder} for other settings")
    return run, replace(config, found)


def adopt(config: Config, origin: Checkpoint) -> Config:
    """The settings of a run that starts from another's weights: model and tokenizer are those of the other.

    Only dropout, which no weight depends on, is the new run's own. What has learned from labels does so again.
    """
    theirs = without_removed(origin.config(), str(origin.folder / CONFIG))
    kept = {name: value for name, value in theirs.items() if name.startswith(("tokenizer.", "vectors.", "model."))}
    own: dict[str, Any] = {
        "model.dropout": config.model.dropout,
        "tokenizer.path": str(origin.folder / "tokenizer.json"),
    }
    own |= {"data.labelled": config.data.labelled or theirs["model.task"] != "language"}
    return replace(config, kept | own)


def newest_checkpoint(run: Run, notes: list[str]) -> Checkpoint | None:
    """The newest that verifies; what was found damaged is noted."""
    problems: list[str] = []
    checkpoint = run.newest_valid(lambda _, error: problems.append(error.what))
    if checkpoint is None and problems:
        what = f"no checkpoint of run {run.name} is whole: {problems[0]}"
        raise UserError(what, str(run.checkpoints_folder), "--overwrite instead of --resume begins the run again")
    notes += [f"{problem}; an older one is used" for problem in problems]
    return checkpoint
