"""Metrics of the mixture with n-grams: equal to NumPy, apart from those of the model, with a weight fitted elsewhere."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.evaluated_runs import judged_runs
from helpers.small_runs import small_config, train_small
from helpers.user_errors import refused
from lilliput.data.ngrams.kneser_ney import Floats, NGrams, lay_out
from lilliput.decoding.mixture_weights import cross_mix, fit_weight, mix
from lilliput.decoding.ngram_mixture import WEIGHTS
from lilliput.decoding.token_scores import score_tokens
from lilliput.evaluation.evaluate import evaluate, open_evaluation
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.settings.tree import GenerateSettings, MixShare

FIGURES = ("loss", "perplexity", "bits_per_byte")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run with unknown words: one of its four validation documents is also in training and in the set `all`."""
    monkeypatch.chdir(judged_runs())
    return Path(shutil.copytree(judged_runs() / "runs" / "words", tmp_path / "words"))


def settings(share: MixShare | None) -> GenerateSettings:
    return GenerateSettings(mix_ngram=share, tokens=8, engine="torch")


def measured(run: Path, share: MixShare, **arguments: Any) -> dict[str, Any]:
    """Return the block of the mixture; all other metrics must be those without it."""
    found = evaluate(run, settings=settings(share), **arguments)
    json.dumps(found, allow_nan=False)
    mixture: dict[str, Any] = found.pop("mixture")
    assert found == evaluate(run, settings=settings(None), **arguments)
    return mixture


def nats_of(run: Path, on: str, stride: int | None = None) -> tuple[Floats, Floats]:
    """Return the nats of the model and of newly counted n-grams of order 5."""
    evaluation = open_evaluation(run, on)
    writer, train = evaluation.writer, evaluation.train
    start, context, vocabulary = writer.tokenizer.start, writer.config.model.context, writer.config.model.vocab_size
    assert train is not None and vocabulary is not None
    *_, ngrams = NGrams(lay_out(train, start), vocabulary, 5).nats(lay_out(evaluation.file, start))
    return score_tokens(writer.model, evaluation.file, start, context, stride).nats, ngrams


def assert_figures(found: dict[str, Any], nats: Floats, run: Path, on: str) -> None:
    size = open_evaluation(run, on).file.bytes
    expected = nats.mean(), math.exp(nats.mean()), nats.sum() / math.log(2) / size
    assert [found[name] for name in FIGURES] == pytest.approx(expected, rel=1e-12)
    assert found["interval"].keys() == {*FIGURES}
    assert all(found["interval"][name][0] <= found[name] <= found["interval"][name][1] for name in FIGURES)


@pytest.mark.parametrize("on", ["validation", "tests", "train"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_given_weight(share: float, on: str, run: Path) -> None:
    found = measured(run, share, on=on)
    net, ngrams = nats_of(run, on)
    assert_figures(found, mix(net, ngrams, 1 - share), run, on)
    assert_figures(found["ngram"], ngrams, run, on)
    facts = [found[name] for name in ("weight", "weight_from", "weight_documents", "ngram_order")]
    assert facts == [share, "given", None, 5]
    assert not (run / WEIGHTS).exists()


def test_the_ngrams_are_those_of_the_baselines(run: Path) -> None:
    found = evaluate(run, settings=settings(0.5), baselines=True)
    row = next(row for row in found["baselines"] if row["name"] == "Kneser-Ney, order 5")
    alone = found["mixture"]["ngram"]
    assert [row[name] for name in FIGURES] == pytest.approx([alone[name] for name in FIGURES], rel=1e-12)


@pytest.mark.parametrize("on", ["validation", "held", "held.txt"])
@pytest.mark.parametrize("stride", [None, 5])
def test_halves_if_all_documents_of_validation_are_evaluated(on: str, stride: int | None, run: Path) -> None:
    """The set `held` and the file have the documents of the validation split."""
    found = measured(run, "auto", on=on, stride=stride)
    net, ngrams = nats_of(run, on, stride)
    halves = cross_mix(net, ngrams, document_numbers(run, on))
    assert_figures(found, halves.nats, run, on)
    assert (found["weight"], found["weight_from"]) == (pytest.approx(1 - halves.weight, rel=1e-12), "halves")
    assert not (run / WEIGHTS).exists()


def document_numbers(run: Path, on: str) -> Any:
    file = open_evaluation(run, on).file
    return np.repeat(np.arange(file.documents), np.diff(file.offsets))


@pytest.mark.parametrize("stride", [None, 5])
def test_the_weight_is_fitted_on_documents_that_are_not_evaluated(stride: int | None, run: Path) -> None:
    """The last validation document is in the set `all`, so the weight is fitted on the first three."""
    found = measured(run, "auto", on="all", stride=stride)
    own = document_numbers(run, "validation") < 3
    net, ngrams = nats_of(run, "validation", stride)
    weight = 1 - fit_weight(net[own], ngrams[own])
    facts = [found[name] for name in ("weight", "weight_from", "weight_documents")]
    assert facts == [pytest.approx(weight, rel=1e-9), "validation", 3]
    net, ngrams = nats_of(run, "all", stride)
    assert_figures(found, mix(net, ngrams, 1 - found["weight"]), run, "all")
    assert not (run / WEIGHTS).exists(), "only the weight of the whole split is kept"


def test_a_test_set_has_the_weight_of_the_whole_validation_split(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("The moon saw the sea.\n<|endoftext|>\nA bee lost the bell.", "utf-8")
    found = measured(run, "auto", on=str(tmp_path / "new.txt"), stride=5)
    weight = 1 - fit_weight(*nats_of(run, "validation", 5))
    assert (found["weight"], found["weight_documents"]) == (pytest.approx(weight, rel=1e-9), 4)
    messages: list[str] = []
    evaluate(
        run, str(tmp_path / "new.txt"), 5, settings=settings("auto"), report=lambda text, *_: messages.append(text)
    )
    assert (run / WEIGHTS).exists() and not any("fitting" in text for text in messages)


def test_the_setting_of_the_run_is_used(tmp_path: Path) -> None:
    mixed, _ = train_small(small_config(tmp_path, "mixed", generate__mix_ngram="0.25"))
    alone, _ = train_small(small_config(tmp_path, "alone"))
    found, other = evaluate(mixed.folder), evaluate(alone.folder)
    assert found.pop("mixture")["weight"] == 0.25
    assert found | {"run": None} == other | {"run": None}
    assert "mixture" not in evaluate(mixed.folder, settings=replace(GenerateSettings(), mix_ngram=None))


def test_generated_texts_name_the_mixture(run: Path) -> None:
    task = OverlapTask(prompts=2, tokens=5)
    found = evaluate(run, settings=settings("auto"), overlap=task, stories=2)
    for part in (found["overlap"], found["stories"]):
        assert part["mixture"]["weight_from"] == "validation" and part["mixture"]["ngram_order"] == 5
    assert found["overlap"]["generate"]["mix_ngram"] == "auto"
    found = evaluate(run, settings=settings(None), overlap=task, stories=2)
    assert found["overlap"]["mixture"] is None and found["stories"]["mixture"] is None


def test_the_mixture_is_better_than_both_on_a_small_text(tmp_path: Path) -> None:
    changes = {"data__source": "storybook", "data__documents": "40", "tokenizer__kind": "word", "model__context": "64"}
    changes |= {"model__dim": "32", "train__steps": "200", "evaluate__every": "200", "train__save_every": "200"}
    run, _ = train_small(small_config(tmp_path, optimizer__lr="2e-2", **changes))
    found = evaluate(run.folder, settings=settings("auto"))
    mixture = found["mixture"]
    assert mixture["bits_per_byte"] < 0.97 * min(found["bits_per_byte"], mixture["ngram"]["bits_per_byte"])
    assert 0.1 < mixture["weight"] < 0.9


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(judged_runs())
    error = refused(lambda: evaluate("runs/classifier", settings=settings(0.5)))
    assert (error.code, error.setting) == ("model.task", "generate.mix_ngram")
    run, _ = train_small(small_config(tmp_path))
    (tmp_path / "mytext.txt").rename(tmp_path / "other.txt")
    error = refused(lambda: evaluate(run.folder, str(tmp_path / "other.txt"), settings=settings(0.5)))
    assert error.setting == "generate.mix_ngram" and "mytext.txt" in str(error)
