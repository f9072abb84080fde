"""Find a learning rate with a range test (Smith 2017).

Owns: the trial, which trains with growing learning rates; the rate that it suggests; its plot. Does not own: the
steps (`loop`), building the trainer (`session`), printing (`cli`).

All learning rates of the recipe are scaled by one factor, so their proportions stay the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from lilliput.data.progress import Report, silent
from lilliput.errors import UserError
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.storage.atomic_files import cannot_write
from lilliput.storage.run_folders import resolve_checkpoint
from lilliput.training.run_start import run_folder
from lilliput.training.session import open_session

UPDATES = 100
FACTORS = (1e-4, 1e2)  # of the recipe's rates, first and last: each step multiplies them by 1.15
# One batch differs from the next by more than a step changes the loss. So losses are smoothed by a Gaussian with this standard
# deviation in steps; it is symmetric and does not lag.
WIDTH = 3.0
# A trial ends when the smoothed loss has lost all that it had gained, and at least this many nats.
FAR = 1.0
LOWER = "set optimizer.lr a thousand times lower"
RATES = ("lr", "matrix_lr", "embedding_lr", "head_lr")


@dataclass(frozen=True)
class Trial:
    """`losses`: the loss of the batch after the step with each factor. `start`: the loss before the first step."""

    factors: list[float]
    start: float
    losses: list[float]
    diverged: bool

    @cached_property
    def smoothed(self) -> list[float]:
        return smooth(self.losses)

    @cached_property
    def lowest(self) -> int:
        return min(range(len(self.smoothed)), key=self.smoothed.__getitem__)

    @cached_property
    def steepest(self) -> int:
        """Return the index where the smoothed loss falls fastest before its minimum: higher rates begin to be too high,
        although the loss still falls."""
        falls = [early - late for early, late in pairwise(self.smoothed[: self.lowest + 1])]
        return 1 + max(range(len(falls)), key=falls.__getitem__)

    def check(self) -> None:
        """Raise if the loss falls by less than twice the noise between batches."""
        before = slice(0, self.lowest + 1)  # after the minimum, high rates add to the noise
        distances = [abs(loss - mean) for loss, mean in zip(self.losses[before], self.smoothed[before], strict=True)]
        fall, noise = self.smoothed[0] - self.smoothed[self.lowest], sum(distances) / len(distances)
        if self.lowest == 0 or fall < 2 * noise:
            rose = self.diverged or self.smoothed[-1] - self.smoothed[0] > 2 * noise
            what = "the loss rose before it fell clearly" if rose else "no learning rate lowered the loss clearly"
            what += f" (fell by {fall:.3f} nats, noise between batches {noise:.3f})"
            fix = f"{LOWER if rose else 'set optimizer.lr a hundred times higher'}, or increase train.batch"
            raise UserError(what, fix=fix, code="learning-rate.not-found", setting="optimizer.lr")


def find_learning_rate(config: Config, start_from: str | None = None, report: Report = silent) -> Trial:
    """Train with growing learning rates, in a temporary run that is deleted."""
    origin = str(resolve_checkpoint(start_from, config.log.folder).folder) if start_from else None
    factors = [FACTORS[0] * (FACTORS[1] / FACTORS[0]) ** (n / (UPDATES - 1)) for n in range(UPDATES)]
    losses: list[float] = []
    with (
        TemporaryDirectory() as folder,
        open_session(for_trial(config, folder), start_from=origin, report=report) as session,
    ):
        trainer = session.trainer
        for note in session.notes:
            report(note, 0, 0)
        trainer.model.train()
        peaks = [(group, group["peak"]) for group in trainer.optimizer.param_groups]
        diverged = False
        for done, factor in enumerate([*factors, 0.0]):  # the last step only measures the loss after the one before
            for group, peak in peaks:
                group["peak"] = factor * peak
            try:
                losses.append(trainer.update().loss)
            except UserError as error:
                if error.code != "model.not-finite" or not losses:
                    raise
                if len(losses) == 1:
                    what = "the loss is not finite after one step with the lowest learning rate of the trial"
                    code = "learning-rate.not-found"
                    raise UserError(what, fix=LOWER, code=code, setting="optimizer.lr") from error
                diverged = True
            diverged = diverged or is_far_above(losses)
            report("trying learning rates", done, UPDATES)
            if diverged:
                break
    trial = Trial(factors[: len(losses) - 1], losses[0], losses[1:], diverged)
    trial.check()
    return trial


def for_trial(config: Config, folder: str) -> Config:
    """Return the settings with constant learning rates and without trackers."""
    rates = {"schedule.kind": "constant", "schedule.warmup": 0, "optimizer.average": None}
    budget = {"train.steps": UPDATES + 1, "train.tokens": None, "train.minutes": None}
    quiet = {"log.folder": folder, "log.tensorboard": False, "log.trackio": False, "log.wandb": False}
    return replace(config, rates | budget | quiet)


def smooth(losses: list[float]) -> list[float]:
    smoothed = []
    for center in range(len(losses)):
        weights = [math.exp(-(((index - center) / WIDTH) ** 2) / 2) for index in range(len(losses))]
        smoothed.append(sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights))
    return smoothed


def is_far_above(losses: list[float]) -> bool:
    smoothed = smooth(losses)
    best = min(smoothed)
    return smoothed[-1] > best + max(FAR, smoothed[0] - best)


def scaled_rates(config: Config, factor: float) -> dict[str, float]:
    """Return the scaled learning rates of the recipe's optimizer by dotted name, to two digits: the test is not more exact."""
    used = [name for name in RATES if name != "matrix_lr" or config.optimizer.kind == "muon"]
    rates = {f"optimizer.{name}": getattr(config.optimizer, name) for name in used}
    return {name: float(f"{factor * rate:.1e}") for name, rate in rates.items() if rate is not None}


def plot_trial(trial: Trial, config: Config) -> Path:
    """Plot losses over `optimizer.lr` with the suggested rate; return the file, which is next to the run's folder."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder = run_folder(config)
    path = folder.with_name(f"{folder.name}-lr.png")
    rates = [factor * config.optimizer.lr for factor in trial.factors]
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(rates, trial.losses, ".", color="0.65", label="loss of each batch")
    axes.plot(rates, trial.smoothed, color="tab:blue", linewidth=2.0, label="smoothed")
    suggestion = rates[trial.steepest]
    axes.axvline(suggestion, color="tab:orange", linestyle="--", label=f"suggestion: {suggestion:.1e}")
    axes.plot(suggestion, trial.smoothed[trial.steepest], "o", color="tab:orange")
    axes.set_xscale("log")
    # The limits ignore outliers of single batches.
    low, high = min(trial.losses), max(trial.start, *trial.smoothed)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.set_xlabel("optimizer.lr" + (" (all rates in proportion)" if len(scaled_rates(config, 1.0)) > 1 else ""))
    axes.set_ylabel("training loss (nats)")
    axes.set_title(f"{folder.name}: loss after a step with each learning rate")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise cannot_write(error, path) from error
    return path
