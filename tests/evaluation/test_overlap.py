"""The overlap task: prompts, metrics of the generated texts, and the CSV of samples."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch

from helpers.small_runs import small_config, train_small
from helpers.user_errors import refused
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.writer import Sample, Writer, load
from lilliput.evaluation.bleu import bleu_figures
from lilliput.evaluation.overlap import Continuation, Overlap, compare_overlaps, measure_overlap
from lilliput.evaluation.overlap_settings import OverlapTask, PromptChoice
from lilliput.evaluation.prompt_selection import choose_places, first_tokens
from lilliput.settings.tree import GenerateSettings

TASK = OverlapTask(prompts=4, prompt_tokens=5, tokens=12, batch=3)
DRAWN = GenerateSettings(temperature=1.0, engine="torch")


@pytest.fixture(scope="module", params=["byte", "word"])
def evaluated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Writer, TokenFile]:
    """Return a trained writer and its training documents, which are more than the validation documents."""
    folder = tmp_path_factory.mktemp(request.param)
    config = small_config(folder, tokenizer__kind=request.param, tokenizer__min_frequency="60")
    run, _ = train_small(config)
    return load(run.folder, device="cpu"), prepare(config).split("train")


@pytest.fixture(scope="module")
def overlap(evaluated: tuple[Writer, TokenFile]) -> Overlap:
    return measure_overlap(*evaluated, DRAWN, TASK)


def test_prompts_and_references_are_first_tokens_of_documents(
    evaluated: tuple[Writer, TokenFile], overlap: Overlap
) -> None:
    writer, file = evaluated
    assert len(overlap.continuations) == 4
    for one in overlap.continuations:
        first = int(file.offsets[one.document])
        ids = file.tokens[first : first + 17].tolist()
        assert one.sample.prompt == writer.tokenizer.decode(ids[:5])
        assert one.reference_ids == ids[5:]
        assert one.sample.prompt + one.reference == writer.tokenizer.decode(ids), "decoded like one text"
        assert len(one.ids) == one.sample.tokens - (one.sample.finish == "end")
        assert one.sample.prompt + one.sample.text == writer.tokenizer.decode([*ids[:5], *one.ids])
    unknown = [sum(id_ == writer.tokenizer.unknown for id_ in one.reference_ids) for one in overlap.continuations]
    assert [text.count("□") for text in overlap.references] == unknown
    assert any(unknown) == (writer.tokenizer.kind == "word")


def test_samples_do_not_depend_on_the_batch(evaluated: tuple[Writer, TokenFile], overlap: Overlap) -> None:
    for batch in (1, 4, 100):
        again = measure_overlap(*evaluated, DRAWN, replace(TASK, batch=batch))
        for one, other in zip(overlap.continuations, again.continuations, strict=True):
            assert (one.sample.text, one.ids, one.reference) == (other.sample.text, other.ids, other.reference)
            assert one.sample.logprob == pytest.approx(other.sample.logprob, abs=1e-12)


def test_another_seed_samples_other_texts_from_the_same_prompts(
    evaluated: tuple[Writer, TokenFile], overlap: Overlap
) -> None:
    other = measure_overlap(*evaluated, DRAWN, replace(TASK, seed=1))
    assert [one.document for one in other.continuations] == [one.document for one in overlap.continuations]
    assert other.hypotheses != overlap.hypotheses
    row = evaluated[0].samples(
        [first_ids(evaluated[1], other.continuations[1].document)], 4 + 1, replace(DRAWN, tokens=12)
    )[0]
    assert row.text == other.continuations[1].sample.text, "row i of seed s uses seed s x prompts + i"


def first_ids(file: TokenFile, document: int) -> list[int]:
    first = int(file.offsets[document])
    return [int(id_) for id_ in file.tokens[first : first + 5]]


@pytest.mark.parametrize("choice", ["random", "middle"])
@pytest.mark.parametrize("full", [False, True])
def test_prompts_at_other_places(evaluated: tuple[Writer, TokenFile], choice: PromptChoice, full: bool) -> None:
    writer, file = evaluated
    task = replace(TASK, prompt_choice=choice, full_reference=full, seed=2)
    found, again = (measure_overlap(*evaluated, DRAWN, replace(task, batch=batch)) for batch in (3, 1))
    assert [one.sample.text for one in again.continuations] == [one.sample.text for one in found.continuations]
    places = [(one.document, one.start) for one in found.continuations]
    assert places == [(one.document, one.start) for one in again.continuations]
    assert places == choose_places(file, choice, 4, 17, 2)
    assert any(start for _, start in places) == (choice == "middle")
    for one in found.continuations:
        ids = first_tokens(file, one.document, None if full else 17, one.start)
        assert (one.sample.prompt, one.reference_ids) == (writer.tokenizer.decode(ids[:5]), ids[5:])
    reached = [
        one.start + 5 + len(one.reference_ids) == file.offsets[one.document + 1] - file.offsets[one.document] - 1
        for one in found.continuations
    ]
    assert all(reached) == full
    used = found.as_dict()["task"]
    assert (used["prompt_choice"], used["seed"], used["full_reference"]) == (choice, 2, full)


@pytest.mark.parametrize("tokens", [12, 70])
@pytest.mark.parametrize("settings", [DRAWN, GenerateSettings(temperature=0.0, beams=2, engine="torch", min_tokens=70)])
@pytest.mark.parametrize("full", [False, True])
def test_perplexities_equal_those_of_the_logits_without_a_cache(
    evaluated: tuple[Writer, TokenFile], tokens: int, settings: GenerateSettings, full: bool
) -> None:
    """In float64; the context is 32 tokens, and longer texts are read again from the last 16 tokens on."""
    task = replace(TASK, tokens=tokens, prompts=3, full_reference=full)
    found = measure_overlap(*evaluated, replace(settings, min_tokens=min(settings.min_tokens, tokens)), task)
    rows, tokenizer = found.samples(), evaluated[0].tokenizer
    generated, references = list[float](), list[float]()
    for row, one in zip(rows, found.continuations, strict=True):
        prompt = first_ids(evaluated[1], one.document)
        ends = [tokenizer.end] if one.sample.finish == "end" else []
        own, other = (nats_of(evaluated[0], prompt, ids) for ids in ([*one.ids, *ends], one.reference_ids))
        assert row["generated_perplexity"] == pytest.approx(math.exp(sum(own) / len(own)), rel=1e-12)
        assert row["reference_perplexity"] == pytest.approx(math.exp(sum(other) / len(other)), rel=1e-12)
        generated, references = generated + own, references + other
    figures = found.as_dict()
    assert figures["perplexity"] == pytest.approx(math.exp(sum(generated) / len(generated)), rel=1e-12)
    assert figures["reference_perplexity"] == pytest.approx(math.exp(sum(references) / len(references)), rel=1e-12)
    for name, column in (("mean_perplexity", "generated"), ("mean_reference_perplexity", "reference")):
        assert figures[name] == pytest.approx(sum(float(row[f"{column}_perplexity"]) for row in rows) / 3, rel=1e-12)


def nats_of(writer: Writer, prompt: list[int], ids: list[int]) -> list[float]:
    nats, view = list[float](), [writer.tokenizer.start, *prompt]
    assert writer.model.settings.context == 32
    for id_ in ids:
        view = view if len(view) <= 32 else view[-16:]
        with torch.inference_mode():
            logits = writer.model(torch.tensor([view]))[0, -1]
        assert logits.dtype == torch.float64
        nats.append(-logits.log_softmax(dim=-1)[id_].item())
        view.append(id_)
    return nats


@pytest.mark.parametrize("settings", [DRAWN, GenerateSettings(temperature=0.0, beams=3, engine="torch")])
def test_metrics_equal_those_of_the_texts(evaluated: tuple[Writer, TokenFile], settings: GenerateSettings) -> None:
    found = measure_overlap(*evaluated, settings, TASK)
    result, samples = found.as_dict(), [one.sample for one in found.continuations]
    json.dumps(result, allow_nan=False)
    assert result["bleu"] == bleu_figures(found.hypotheses, found.references)
    assert result["bleu"]["4"] == sacrebleu.corpus_bleu(found.hypotheses, [found.references]).score
    tokens = sum(sample.tokens for sample in samples)
    assert result["tokens"] == tokens / 4
    assert result["perplexity"] == pytest.approx(math.exp(-sum(sample.logprob for sample in samples) / tokens))
    each = [math.exp(-sample.logprob / sample.tokens) for sample in samples]
    assert result["mean_perplexity"] == pytest.approx(sum(each) / 4)
    assert result["tokens_per_second"] * result["seconds_per_sample"] == pytest.approx(result["tokens"])
    assert (result["task"]["prompts"], result["asked_prompts"]) == (4, 4)
    assert (result["generate"]["tokens"], result["engine"]) == (12, "torch")
    assert result["conventions"].keys() == {"words", "words_unsmoothed", "words_with_prompt", "tokens", "forced"}
    # The first teacher-forced token equals the first token of greedy decoding.
    assert [one.likeliest[0] for one in found.continuations] == [
        evaluated[0].samples([first_ids(evaluated[1], one.document)], 0, GREEDY)[0].pieces[0].id
        for one in found.continuations
    ]


GREEDY = GenerateSettings(temperature=0.0, tokens=1, engine="torch")


def test_the_csv_can_be_read(overlap: Overlap, tmp_path: Path) -> None:
    overlap.write_csv(tmp_path / "samples.csv")
    with open(tmp_path / "samples.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "prompt", "generated", "reference", "generated_perplexity", "reference_perplexity", "sentence_bleu",
    ]  # fmt: skip
    assert [row["generated"] for row in rows] == overlap.hypotheses
    assert [row["reference"] for row in rows] == overlap.references
    assert [row["prompt"] for row in rows] == [one.sample.prompt for one in overlap.continuations]
    for row, one in zip(rows, overlap.continuations, strict=True):
        assert float(row["generated_perplexity"]) == one.generated_perplexity
        assert float(row["reference_perplexity"]) == one.reference_perplexity
        assert float(row["sentence_bleu"]) == sacrebleu.sentence_bleu(row["generated"], [row["reference"]]).score
    assert rows == [{name: str(value) for name, value in row.items()} for row in overlap.samples()]


def overlap_of(pairs: list[tuple[str, str]], unknown: str | None = None) -> Overlap:
    """Return an `Overlap` of these pairs (generated, reference)."""
    rows = [
        Continuation(at, 0, Sample("So", text, 3, -3.0, "length"), [1], reference, [1], [1], 1.0)
        for at, (text, reference) in enumerate(pairs)
    ]
    return Overlap(TASK, DRAWN, "torch", unknown, rows, 1.0)


NASTY = ['a, "b"', "line\nend\r\nother\r", "", "'", " ;\t", "\0", "=1+1", "Zoë 🐝 \u2028", '"""']


def test_any_text_survives_the_csv(tmp_path: Path) -> None:
    overlap_of([(text, text[::-1]) for text in NASTY]).write_csv(tmp_path / "samples.csv")
    with open(tmp_path / "samples.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["generated"] for row in rows] == NASTY
    assert [row["reference"] for row in rows] == [text[::-1] for text in NASTY]


def test_an_unwritable_csv_path_raises_an_error(tmp_path: Path) -> None:
    error = refused(lambda: overlap_of([("a", "b")]).write_csv(tmp_path / "no" / "samples.csv"))
    assert error.where == str(tmp_path / "no" / "samples.csv")


def test_unknown_words_do_not_match() -> None:
    pairs = [("the <unk> sat on the <unk> now", "the <unk> sat on the <unk> now")] * 2
    unmarked, marked = overlap_of(pairs).as_dict(), overlap_of(pairs, "<unk>").as_dict()
    assert unmarked["bleu"]["1"] == pytest.approx(100)
    assert marked["bleu"]["1"] == pytest.approx(100 * 5 / 7)
    assert marked["written"]["words"] == 7, "one word each"
    assert (marked["task"]["prompts"], marked["different_prompts"]) == (2, 1)
    assert marked["conventions"] == unmarked["conventions"], "conventions do not mark unknown words"


def test_compare_two_decoding_strategies() -> None:
    true = [f"Tom met fox {n} and cat {n * n} on hill {n % 3} today" for n in range(12)]
    good = overlap_of([(text, text) for text in true])
    worse = overlap_of([(text.replace("and", "or").replace("on", "by"), text) for text in true])
    found = compare_overlaps(good, worse)
    assert found is not None
    good_score, worse_score = (sacrebleu.corpus_bleu(one.hypotheses, [one.references]).score for one in (good, worse))
    assert found.mean == pytest.approx(good_score - worse_score)
    assert 0 < found.low <= found.mean <= found.high and found.p < 0.01
    other = compare_overlaps(worse, good, order=1)
    assert other is not None and other.mean == pytest.approx(-100 * 2 / 11)
    same = compare_overlaps(good, good)
    assert same == (0.0, 0.0, 0.0, 1.0)
    assert compare_overlaps(overlap_of([("a", "a")]), overlap_of([("b", "a")])) is None, "one prompt has no interval"


def test_different_prompts_raise_an_error() -> None:
    error = refused(lambda: compare_overlaps(overlap_of([("a", "b")]), overlap_of([("a", "c")])))
    assert error.code == "evaluation.mismatch"


def test_training_documents_are_excluded(evaluated: tuple[Writer, TokenFile], overlap: Overlap) -> None:
    leaked = np.zeros(evaluated[1].documents, bool)
    leaked[overlap.continuations[0].document] = True
    found = measure_overlap(*evaluated, DRAWN, TASK, without=leaked)
    assert not {one.document for one in found.continuations} & {overlap.continuations[0].document}


def test_short_documents_raise_an_error(evaluated: tuple[Writer, TokenFile]) -> None:
    error = refused(lambda: measure_overlap(*evaluated, DRAWN, OverlapTask(tokens=100_000)))
    assert error.code == "evaluation.too-small" and "100,005" in error.what


def test_only_training_documents_raise_an_error(evaluated: tuple[Writer, TokenFile]) -> None:
    error = refused(lambda: measure_overlap(*evaluated, DRAWN, TASK, without=np.ones(evaluated[1].documents, bool)))
    assert error.code == "evaluation.too-small" and "training" in error.what


def test_a_classifier_raises_an_error(evaluated: tuple[Writer, TokenFile]) -> None:
    writer, file = evaluated
    config = replace(writer.config, model=replace(writer.config.model, task="classifier", classes=2))
    error = refused(lambda: measure_overlap(replace(writer, config=config), file, DRAWN, TASK))
    assert "classifier" in error.what
