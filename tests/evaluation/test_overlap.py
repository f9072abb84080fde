"""The task is done as it says, its figures are those of its texts, and its table can be read back."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from helpers.small_runs import small_config, train_small
from helpers.user_errors import refused
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.writer import Sample, Writer, load
from lilliput.evaluation.bleu import bleu_figures
from lilliput.evaluation.overlap import Continuation, Overlap, compare_overlaps, measure_overlap
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.settings.tree import GenerateSettings

TASK = OverlapTask(prompts=4, prompt_tokens=5, tokens=12, batch=3)
DRAWN = GenerateSettings(temperature=1.0, engine="torch")


@pytest.fixture(scope="module", params=["byte", "word"])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Writer, TokenFile]:
    """A writer, and the documents that it learned from: there are more of them than of the others."""
    folder = tmp_path_factory.mktemp(request.param)
    config = small_config(folder, tokenizer__kind=request.param, tokenizer__min_frequency="60")
    run, _ = train_small(config)
    return load(run.folder, device="cpu"), prepare(config).split("train")


@pytest.fixture(scope="module")
def overlap(judged: tuple[Writer, TokenFile]) -> Overlap:
    return measure_overlap(*judged, DRAWN, TASK)


def test_prompts_and_references_are_the_first_tokens_of_documents(
    judged: tuple[Writer, TokenFile], overlap: Overlap
) -> None:
    writer, file = judged
    assert len(overlap.continuations) == 4
    for one in overlap.continuations:
        first = int(file.offsets[one.document])
        ids = file.tokens[first : first + 17].tolist()
        assert one.sample.prompt == writer.tokenizer.decode(ids[:5])
        assert one.reference_ids == ids[5:]
        assert one.sample.prompt + one.reference == writer.tokenizer.decode(ids), "cut alike, joined as prose is"
        assert len(one.ids) == one.sample.tokens - (one.sample.finish == "end")
        assert one.sample.prompt + one.sample.text == writer.tokenizer.decode([*ids[:5], *one.ids])
    unknown = [sum(id_ == writer.tokenizer.unknown for id_ in one.reference_ids) for one in overlap.continuations]
    assert [text.count("□") for text in overlap.references] == unknown
    assert any(unknown) == (writer.tokenizer.kind == "word")


def test_samples_do_not_depend_on_the_batch(judged: tuple[Writer, TokenFile], overlap: Overlap) -> None:
    for batch in (1, 4, 100):
        again = measure_overlap(*judged, DRAWN, replace(TASK, batch=batch))
        for one, other in zip(overlap.continuations, again.continuations, strict=True):
            assert (one.sample.text, one.ids, one.reference) == (other.sample.text, other.ids, other.reference)
            assert one.sample.logprob == pytest.approx(other.sample.logprob, abs=1e-12)


def test_another_seed_draws_other_texts_after_the_same_prompts(
    judged: tuple[Writer, TokenFile], overlap: Overlap
) -> None:
    other = measure_overlap(*judged, DRAWN, replace(TASK, seed=1))
    assert [one.document for one in other.continuations] == [one.document for one in overlap.continuations]
    assert other.hypotheses != overlap.hypotheses
    row = judged[0].samples([first_ids(judged[1], other.continuations[1].document)], 4 + 1, replace(DRAWN, tokens=12))[
        0
    ]
    assert row.text == other.continuations[1].sample.text, "row i of seed s draws from s x prompts + i"


def first_ids(file: TokenFile, document: int) -> list[int]:
    first = int(file.offsets[document])
    return [int(id_) for id_ in file.tokens[first : first + 5]]


@pytest.mark.parametrize("how", [DRAWN, GenerateSettings(temperature=0.0, beams=3, engine="torch")])
def test_the_figures_are_those_of_the_texts(judged: tuple[Writer, TokenFile], how: GenerateSettings) -> None:
    found = measure_overlap(*judged, how, TASK)
    told, samples = found.as_dict(), [one.sample for one in found.continuations]
    json.dumps(told, allow_nan=False)
    assert told["bleu"] == bleu_figures(found.hypotheses, found.references)
    assert told["bleu"]["4"] == sacrebleu.corpus_bleu(found.hypotheses, [found.references]).score
    tokens = sum(sample.tokens for sample in samples)
    assert told["tokens"] == tokens / 4
    assert told["perplexity"] == pytest.approx(math.exp(-sum(sample.logprob for sample in samples) / tokens))
    each = [math.exp(-sample.logprob / sample.tokens) for sample in samples]
    assert told["mean_perplexity"] == pytest.approx(sum(each) / 4)
    assert told["tokens_per_second"] * told["seconds_per_sample"] == pytest.approx(told["tokens"])
    assert (told["task"]["prompts"], told["asked_prompts"]) == (4, 4)
    assert (told["generate"]["tokens"], told["engine"]) == (12, "torch")
    assert told["conventions"].keys() == {"words", "words_unsmoothed", "words_with_prompt", "tokens", "forced"}
    # Greedy in the true places is what a greedy text begins with.
    assert [one.likeliest[0] for one in found.continuations] == [
        judged[0].samples([first_ids(judged[1], one.document)], 0, GREEDY)[0].pieces[0].id
        for one in found.continuations
    ]


GREEDY = GenerateSettings(temperature=0.0, tokens=1, engine="torch")


def test_the_table_can_be_read_back(overlap: Overlap, tmp_path: Path) -> None:
    overlap.write_csv(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["prompt", "reference", "hypothesis", "perplexity", "bleu"]
    assert [row["hypothesis"] for row in rows] == overlap.hypotheses
    assert [row["reference"] for row in rows] == overlap.references
    assert [row["prompt"] for row in rows] == [one.sample.prompt for one in overlap.continuations]
    for row, one in zip(rows, overlap.continuations, strict=True):
        assert float(row["perplexity"]) == one.perplexity
        assert float(row["bleu"]) == sacrebleu.sentence_bleu(row["hypothesis"], [row["reference"]]).score


def overlap_of(pairs: list[tuple[str, str]], unknown: str | None = None) -> Overlap:
    """As if these texts, (written, reference), had been written."""
    rows = [
        Continuation(at, Sample("So", text, 3, -3.0, "length"), [1], reference, [1], [1], 1.0)
        for at, (text, reference) in enumerate(pairs)
    ]
    return Overlap(TASK, DRAWN, "torch", unknown, rows, 1.0)


NASTY = ['a, "b"', "line\nend\r\nother\r", "", "'", " ;\t", "\0", "=1+1", "Zoë 🐝 \u2028", '"""']


def test_any_text_can_be_read_back(tmp_path: Path) -> None:
    overlap_of([(text, text[::-1]) for text in NASTY]).write_csv(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["hypothesis"] for row in rows] == NASTY
    assert [row["reference"] for row in rows] == [text[::-1] for text in NASTY]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    error = refused(lambda: overlap_of([("a", "b")]).write_csv(tmp_path / "no" / "table.csv"))
    assert error.where == str(tmp_path / "no" / "table.csv")


def test_unknown_words_never_flatter() -> None:
    pairs = [("the <unk> sat on the <unk> now", "the <unk> sat on the <unk> now")] * 2
    flattered, honest = overlap_of(pairs).as_dict(), overlap_of(pairs, "<unk>").as_dict()
    assert flattered["bleu"]["1"] == pytest.approx(100)
    assert honest["bleu"]["1"] == pytest.approx(100 * 5 / 7)
    assert honest["written"]["words"] == 7, "one word each"
    assert (honest["task"]["prompts"], honest["different_prompts"]) == (2, 1)
    assert honest["conventions"] == flattered["conventions"], "there they count as they do in other reports"


def test_comparing_two_ways_to_write() -> None:
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
    assert compare_overlaps(overlap_of([("a", "a")]), overlap_of([("b", "a")])) is None, "one prompt tells nothing"


def test_texts_after_other_prompts_are_not_compared() -> None:
    error = refused(lambda: compare_overlaps(overlap_of([("a", "b")]), overlap_of([("a", "c")])))
    assert error.code == "evaluation.mismatch"


def test_documents_that_were_learned_from_are_left_out(judged: tuple[Writer, TokenFile], overlap: Overlap) -> None:
    leaked = np.zeros(judged[1].documents, bool)
    leaked[overlap.continuations[0].document] = True
    found = measure_overlap(*judged, DRAWN, TASK, without=leaked)
    assert not {one.document for one in found.continuations} & {overlap.continuations[0].document}


def test_documents_that_are_too_short_are_told(judged: tuple[Writer, TokenFile]) -> None:
    error = refused(lambda: measure_overlap(*judged, DRAWN, OverlapTask(tokens=100_000)))
    assert error.code == "evaluation.too-small" and "100,005" in error.what


def test_documents_that_were_all_learned_from_are_told(judged: tuple[Writer, TokenFile]) -> None:
    error = refused(lambda: measure_overlap(*judged, DRAWN, TASK, without=np.ones(judged[1].documents, bool)))
    assert error.code == "evaluation.too-small" and "training" in error.what


def test_a_classifier_does_not_write(judged: tuple[Writer, TokenFile]) -> None:
    writer, file = judged
    config = replace(writer.config, model=replace(writer.config.model, task="classifier", classes=2))
    error = refused(lambda: measure_overlap(replace(writer, config=config), file, DRAWN, TASK))
    assert "classifier" in error.what
