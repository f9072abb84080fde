"""The tasks of a model: language, classifier, both. A task determines the head.

Owns: the table of `model.task`. An entry names the head that it builds, counts its parameters, and checks for conflicting
settings. Does not import torch. Does not own: the heads (`heads`), the tables of the other parts (`model_choices`).
"""

from __future__ import annotations

from dataclasses import dataclass

from lilliput.settings.choice_tables import TABLES, Choice, ChoiceTable, Conflict
from lilliput.settings.tree import Config, ModelSettings


@dataclass(frozen=True, kw_only=True)
class Task(Choice):
    """The prediction task of a model; `builds` makes the head from the model's settings."""

    tokens: bool = True  # predicts the next token: a causal decoder
    labels: bool = False  # predicts the label of a document

    def count(self, settings: ModelSettings) -> int:
        """Count the parameters of the head; a tied head has only its bias."""
        assert settings.vocab_size is not None
        total = 0
        if self.tokens:
            total += settings.vocab_size * (settings.bias_head + (0 if settings.tied else settings.dim))
        if self.labels:
            assert settings.classes is not None
            total += (settings.dim + 1 + settings.classes) * settings.classifier_hidden + settings.classes
        return total


def language_rules(config: Config) -> list[Conflict]:
    return [
        Conflict(
            name,
            f"{name} requires model.task 'classifier' or 'both' (got 'language')",
            f"set model.task to classifier or both, or remove {name}",
        )
        for name, value in (
            ("model.classes", config.model.classes),
            ("train.balance_labels", config.train.balance_labels),
        )
        if value not in (None, False)
    ] + one_loss(config)


def classifier_rules(config: Config) -> list[Conflict]:
    conflicts = [
        Conflict(name, f"{name} requires model.task language or both (got classifier)", f"set {name} to {off}")
        for name, value, off in (
            ("model.soft_cap", config.model.soft_cap, "none"),
            ("model.tied", config.model.tied, "false"),
            ("train.z_loss", config.train.z_loss, "0"),
            ("train.pair_updates", config.train.pair_updates, "0"),
            ("generate.mix_ngram", config.generate.mix_ngram, "none"),
        )
        if value not in (None, False, 0)
    ]
    return conflicts + labelled_documents(config) + one_loss(config)


def both_rules(config: Config) -> list[Conflict]:
    train, conflicts = config.train, []
    if config.data.windows == "overlapping":
        what = "model.task both requires data.windows aligned (got overlapping)"
        conflicts.append(Conflict("data.windows", what, "set data.windows to aligned"))
    if train.language_weight + train.label_weight == 0.0:
        what = "train.language_weight or train.label_weight must be above 0 (got 0 for both)"
        conflicts.append(Conflict("train.language_weight", what, "set one of them above 0"))
    return conflicts + labelled_documents(config)


def labelled_documents(config: Config) -> list[Conflict]:
    if config.data.labelled:
        return []
    what = f"model.task {config.model.task} requires labelled documents (got data.labelled false)"
    fix = "set data.labelled to true and use lines of LABEL TAB TEXT, or a table with the columns label and text"
    return [Conflict("data.labelled", what, fix)]


def one_loss(config: Config) -> list[Conflict]:
    return [
        Conflict(
            f"train.{name}",
            f"train.{name} requires model.task both, which has two losses (got {config.model.task})",
            f"remove train.{name}",
        )
        for name in ("language_weight", "label_weight")
        if getattr(config.train, name) != 1.0
    ]


TASKS: ChoiceTable[Task] = TABLES["model.task"]
TASKS.kind = Task
TASKS.add(
    Task(name="language", builds="lilliput.model.heads:language_head", rules=language_rules),
    Task(
        name="classifier",
        builds="lilliput.model.heads:classifier_head",
        tokens=False,
        labels=True,
        rules=classifier_rules,
    ),
    Task(name="both", builds="lilliput.model.heads:language_and_label_head", labels=True, rules=both_rules),
)
