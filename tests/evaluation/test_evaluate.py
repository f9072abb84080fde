"""A run judged on its own splits and on any file: the run's own figures again, leaks, unknown words, the floor, labels."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.evaluated_runs import judged_runs
from helpers.small_runs import copy_of_trained, small_config, train_small, trained
from helpers.user_errors import refused
from lilliput import UserError, evaluate, load
from lilliput.data.prepare import prepare
from lilliput.data.storybook import floor_bits_per_byte
from lilliput.data.tokenizers.word_level import SPLITTERS
from lilliput.evaluation.baseline_comparison import with_verdict
from lilliput.evaluation.evaluate import open_evaluation
from lilliput.evaluation.unknown_words import fit_speller
from lilliput.settings.loading import replace
from lilliput.storage.run_folders import Run


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(judged_runs())
    return judged_runs()


def event(run: Path, kind: str, name: str | None = None) -> dict[str, Any]:
    return next(
        one
        for one in Run(run).metrics()
        if one["event"] == kind and one.get("whole", True) and one.get("name") in (None, name)
    )


def test_it_is_the_runs_own_figure() -> None:
    run = trained() / "runs" / "mine"
    told, own = evaluate(run), event(run, "evaluation")
    assert told["tokens"] == own["tokens"]
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert told[name] == pytest.approx(own[name], rel=1e-12), name
    assert (told["run"], told["checkpoint"], told["on"]) == ("mine", "step-000008", "validation")
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("name", ["classifier", "both"])
def test_it_is_a_tests_own_figure(name: str) -> None:
    told, own = evaluate(f"runs/{name}", on="heard"), event(Path("runs") / name, "test", "heard")
    assert told["accuracy"] == own["accuracy"] and told["documents"] == 11
    if name == "classifier":
        assert told["label_loss"] == pytest.approx(own["loss"], rel=1e-12)
    else:
        assert told["loss"] + told["label_loss"] == pytest.approx(own["loss"], rel=1e-12)
        assert told["interval"].keys() >= {"loss", "bits_per_byte", "accuracy"}
    json.dumps(told, allow_nan=False)


def test_a_file_is_judged_as_the_split_that_it_is() -> None:
    """Encoded in memory by the checkpoint's tokenizer: the same tokens, texts, leaks, and so the same figures."""
    split, file = open_evaluation("runs/words"), open_evaluation("runs/words", on="held.txt")
    assert split.file.tokens.tolist() == file.file.tokens.tolist()
    assert split.file.offsets.tolist() == file.file.offsets.tolist()
    assert split.file.document_bytes.tolist() == file.file.document_bytes.tolist()
    assert split.documents.hashes.tolist() == file.documents.hashes.tolist()
    assert split.texts == file.texts
    assert split.leaked is not None and file.leaked is not None
    assert split.leaked.tolist() == file.leaked.tolist() == [False, False, False, True]
    one, other = evaluate("runs/words"), evaluate("runs/words", on="held.txt")
    assert {**one, "on": None} == {**other, "on": None}


def test_leaked_documents_are_told_and_left_out() -> None:
    told = evaluate("runs/words", stride=5)
    rest = [text for text, leaked in zip(*texts_and_leaks("runs/words"), strict=True) if not leaked]
    Path("rest.txt").write_text("\n<|endoftext|>\n".join(rest), "utf-8")
    alone = evaluate("runs/words", on="rest.txt", stride=5)
    assert told["leaked"]["documents"] == 1 and alone["leaked"] == {"documents": 0, "without": None}
    for name in ("loss", "perplexity", "bits_per_byte", "bits_per_byte_spelled", "tokens", "unknown_rate"):
        assert told["leaked"]["without"][name] == pytest.approx(alone[name], rel=1e-12), name
    assert told["loss"] != alone["loss"] and told["stride"] == 5
    assert evaluate("runs/words", on="train")["leaked"]["documents"] == 0, "of training itself there is nothing to tell"


@pytest.mark.parametrize("name", ["classifier", "both"])
def test_all_figures_of_labels_are_told_without_leaked_documents(name: str) -> None:
    told, judged = evaluate(f"runs/{name}", on="heard"), open_evaluation(f"runs/{name}", on="heard")
    assert judged.leaked is not None and judged.file.labels is not None and judged.labels is not None
    rest = np.flatnonzero(~judged.leaked)
    lines = [f"{judged.labels[judged.file.labels[at]]}\t{judged.texts[at]}\n" for at in rest]
    Path("rest.tsv").write_text("".join(lines), "utf-8")
    alone = evaluate(f"runs/{name}", on="rest.tsv")
    assert 0 < len(lines) < told["documents"]
    for figure in ("accuracy", "confusion", "classes", "macro_f1"):
        assert told["leaked"]["without"][figure] == alone[figure], figure
    assert told["leaked"]["without"]["calibration"]["error"] == pytest.approx(alone["calibration"]["error"], rel=1e-9)


def test_a_file_is_not_the_training_split_because_it_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.txt").write_text(open_evaluation("runs/words", on="train").texts[0], "utf-8")
    assert evaluate("runs/words", on=str(tmp_path / "train"))["leaked"]["documents"] == 1


def test_one_document_of_who_does_both_keeps_its_intervals(tmp_path: Path) -> None:
    """Over blocks, of the loss; of one label there is none."""
    (tmp_path / "one.tsv").write_text("owl\t" + "the bear met the owl " * 9 + "\n", "utf-8")
    told = evaluate("runs/both", on=str(tmp_path / "one.tsv"))
    assert told["documents"] == 1 and told["interval"].keys() >= {"loss", "bits_per_byte"}
    assert "accuracy" not in told["interval"]


def texts_and_leaks(run: str) -> tuple[list[str], list[bool]]:
    judged = open_evaluation(run)
    assert judged.leaked is not None
    return judged.texts, judged.leaked.tolist()


def test_unknown_words_are_paid_for() -> None:
    """By hand: the nats of the tokens, and for each word that the vocabulary lacks those of its letters."""
    told, judged = evaluate("runs/words"), open_evaluation("runs/words")
    tokenizer = judged.writer.tokenizer
    speller, spelling, unknown, tokens = fit_speller(tokenizer), 0.0, 0, 0
    for text in judged.texts:
        for word, _ in SPLITTERS["words", "keep"].pre_tokenize_str(text):  # whatever the vocabulary knows
            tokens += 1
            if tokenizer.encode(word) == [tokenizer.unknown]:
                unknown, spelling = unknown + 1, spelling + speller.nats(word)
    assert unknown > 20 and told["unknown_rate"] == unknown / tokens
    nats = told["loss"] * told["tokens"]
    assert told["bits_per_byte"] == pytest.approx(nats / math.log(2) / told["bytes"], rel=1e-12)
    assert told["bits_per_byte_spelled"] == pytest.approx((nats + spelling) / math.log(2) / told["bytes"], rel=1e-12)
    words = sum(len(text.split()) for text in judged.texts)
    assert told["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-12)
    assert told["word_perplexity_spelled"] == pytest.approx(math.exp((nats + spelling) / words), rel=1e-12)
    assert told["lossy"] and told["lost"] == ["which words were unknown", "white space"]


def test_sets_together_are_all_of_their_documents() -> None:
    told = evaluate("runs/words", on="tests")
    each = {name: evaluate("runs/words", on=name) for name in ("all", "held")}
    assert [row["name"] for row in told["by"]["set"]] == ["all", "held"]
    for row in told["by"]["set"]:
        for name in ("loss", "bits_per_byte", "tokens", "documents", "unknown_rate", "bits_per_byte_spelled"):
            assert row[name] == pytest.approx(each[row["name"]][name], rel=1e-12), name
    assert told["tokens"] == sum(one["tokens"] for one in each.values())
    nats = sum(one["loss"] * one["tokens"] for one in each.values())
    assert told["loss"] == pytest.approx(nats / told["tokens"], rel=1e-12)
    assert open_evaluation("runs/words", on="tests").texts == [
        text for name in each for text in open_evaluation("runs/words", on=name).texts
    ]


def test_labels_of_a_file_that_the_run_does_not_know() -> None:
    told = evaluate("runs/words", on="said.tsv", labelled=True)
    assert [row["name"] for row in told["by"]["label"]] == ["bear", "bee", "owl"]
    assert sum(row["tokens"] for row in told["by"]["label"]) == told["tokens"]
    assert evaluate("runs/words", on="said.tsv")["by"]["label"] == [], "read as text, labels too"


@pytest.mark.parametrize("line", ["no tab here", " \tthe moon", "x" * 999 + "\tthe moon"])
def test_labels_that_a_file_has_not_are_told_with_the_way_out(line: str, tmp_path: Path) -> None:
    """The argument asked for labels, or the run's own settings did."""
    (tmp_path / "plain.txt").write_text(f"owl\tthe sea\n{line}\n", "utf-8")
    error = refused(lambda: evaluate("runs/words", on=str(tmp_path / "plain.txt"), labelled=True))
    assert (error.code, error.setting) == ("data.label", "labelled")
    assert "plain.txt, line 2" in (error.where or "")
    error = refused(lambda: evaluate("runs/classifier", on=str(tmp_path / "plain.txt")))
    assert "plain.txt, line 2" in (error.where or "") and error.setting != "labelled"


def test_parts_add_up() -> None:
    told = evaluate("runs/words")
    for part in ("position", "frequency"):
        rows = told["by"][part]
        assert sum(row["tokens"] for row in rows) == told["tokens"]
        nats = sum(row["tokens"] * row["loss"] for row in rows)
        assert nats == pytest.approx(told["loss"] * told["tokens"], rel=1e-12)
    assert [row["to"] for row in told["by"]["position"]] == [1, 2, 4, 8, 16, 32]
    unknown = told["by"]["frequency"][-1]
    assert unknown["from"] is None and unknown["tokens"] == round(told["unknown_rate"] * (told["tokens"] - 4))


def test_frequencies_are_those_of_training() -> None:
    judged = open_evaluation("runs/words")
    assert judged.train is not None
    counts = np.bincount(judged.train.tokens)
    wanted = sum(
        int(10 <= counts[token] <= 99) for token in judged.file.tokens[1:] if token != judged.writer.tokenizer.unknown
    )
    row = next(row for row in evaluate("runs/words")["by"]["frequency"] if row["from"] == 10)
    assert row["tokens"] == wanted and row["to"] == 99


def test_overlapping_windows_are_the_mean_of_batch_losses() -> None:
    """As published protocols do it: every window of `context` of one long text, batches of them, the mean of the means."""
    Path("long.txt").write_text("the bee saw the sea and the old bear lost the bell . " * 10, "utf-8")
    told = evaluate("runs/words", on="long.txt", overlapping=True)["overlapping"]
    writer = load("runs/words")
    ids = [writer.tokenizer.start, *writer.tokenizer.encode(Path("long.txt").read_text().strip()), writer.tokenizer.end]
    losses = []
    for at in range(len(ids) - 32):
        window = torch.tensor([ids[at : at + 33]])
        with torch.inference_mode():
            losses.append(F.cross_entropy(writer.model(window[:, :-1])[0], window[0, 1:]).item())
    assert told["windows"] == told["sets"][0]["windows"] == len(losses)
    assert told["loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert told["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-12)


def test_overlapping_windows_of_each_set() -> None:
    told = evaluate("runs/words", on="tests", overlapping=True)["overlapping"]
    alone = evaluate("runs/words", on="held", overlapping=True)["overlapping"]
    assert [row["name"] for row in told["sets"]] == ["all", "held"]
    assert told["sets"][1]["loss"] == pytest.approx(alone["loss"], rel=1e-12)
    assert told["windows"] == sum(row["windows"] for row in told["sets"])


def test_the_floor_and_the_gap() -> None:
    told = evaluate("runs/storybook")
    floor = floor_bits_per_byte(open_evaluation("runs/storybook").texts)
    gap = told["gap"]
    assert told["floor"] == gap["floor"] == floor < told["bits_per_byte"]
    assert gap["closed"] == pytest.approx((gap["start"] - told["bits_per_byte"]) / (gap["start"] - floor), rel=1e-12)
    assert floor < gap["start"] < 8.1, "a model of single bytes"
    assert evaluate("runs/words")["floor"] is None
    assert told["floor"] == event(Path("runs/storybook"), "evaluation")["floor"]


def test_intervals_hold_the_figure_and_say_what_they_are_over() -> None:
    many, few = evaluate("runs/both", on="heard"), evaluate("runs/words")
    assert many["interval_over"] == "documents" and few["interval_over"] == "blocks of 32 tokens"
    for told in (many, few):
        for name in ("loss", "perplexity", "bits_per_byte"):
            low, high = told["interval"][name]
            assert low < told[name] < high, name


def test_the_table_of_documents(tmp_path: Path) -> None:
    told = evaluate("runs/words", on="tests", csv=tmp_path / "documents.csv")
    with open(tmp_path / "documents.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["set"], int(row["document"])) for row in rows] == [
        *(("all", number) for number in range(12)),
        *(("held", number) for number in range(4)),
    ]
    assert sum(int(row["tokens"]) for row in rows) == told["tokens"]
    assert math.fsum(float(row["nats"]) for row in rows) == pytest.approx(told["loss"] * told["tokens"], rel=1e-12)
    assert [int(row["leaked"]) for row in rows].count(1) == told["leaked"]["documents"] == 13
    assert float(rows[3]["bits_per_byte"]) == pytest.approx(
        float(rows[3]["nats"]) / math.log(2) / int(rows[3]["bytes"]), rel=1e-12
    )


def test_dropped_documents_are_left_out_of_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are found again by their hashes: those of training are what training saw."""
    config = small_config(tmp_path, data__drop_duplicates="exact")
    source = tmp_path / "mytext.txt"
    documents = source.read_text("utf-8").split("\n<|endoftext|>\n")
    source.write_text("\n<|endoftext|>\n".join([*documents, documents[2], documents[0]]), "utf-8")
    run, _ = train_small(config)
    judged = open_evaluation(run.folder)
    assert judged.prepared is not None and judged.leaked is not None
    assert len(judged.train_texts) == len(prepare(config).hashes("train")) < 13
    assert len(set(judged.train_texts)) == len(judged.train_texts) and not set(judged.train_texts) & set(judged.texts)
    assert not judged.leaked.any()


def test_without_its_training_data_a_run_is_still_judged_on_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of_trained(tmp_path)
    monkeypatch.chdir(folder)
    whole = evaluate("mine", on="mytext.txt")
    (folder / "mytext.txt").rename(folder / "other.txt")
    monkeypatch.setattr("lilliput.evaluation.evaluate.prepare", refuse)
    said: list[str] = []
    told = evaluate("mine", on="other.txt", report=lambda what, done, total: said.append(what))
    assert told["loss"] == whole["loss"] and told["leaked"] is None and told["by"]["frequency"] == []
    assert any("training data" in line and "gone" in line for line in said)
    error = refused(lambda: evaluate("mine", on="other.txt", baselines=True))
    assert (error.code, error.setting) == ("data.source", "baselines")


def refuse(*_: object) -> None:
    raise UserError("gone", code="data.source")


def test_other_data_than_the_run_was_trained_on_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_trained(tmp_path)
    monkeypatch.chdir(folder)
    said: list[str] = []
    here = {"data.source": str(folder / "mytext.txt"), "data.cache": str(folder / "prepared")}
    monkeypatch.setattr(
        "lilliput.evaluation.evaluate.prepare", lambda config, *rest: prepare(replace(config, here), *rest)
    )
    evaluate("mine", report=lambda what, done, total: said.append(what))
    assert not any("has changed" in what for what in said)
    with open("mytext.txt", "a", encoding="utf-8") as file:
        file.write("\n<|endoftext|>\nAnother bee came.\n")
    evaluate("mine", report=lambda what, done, total: said.append(what))
    assert "the data has changed since the run was trained: these are not the texts that it knows" in said


def test_baselines_stand_beside_it() -> None:
    told = evaluate("runs/both", on="heard", baselines=True)
    names = [row["name"] for row in told["baselines"]]
    assert any(name.startswith("Kneser-Ney, order 3") for name in names) and "xz" in names
    assert any(name.startswith("always") for name in names)
    chosen = next(row for row in told["baselines"] if row["chosen"])
    difference = chosen["difference"]
    assert difference["mean"] == pytest.approx(told["loss"] - chosen["loss"], rel=1e-9)
    assert difference["low"] <= difference["mean"] <= difference["high"]
    always = next(row for row in told["baselines"] if row["name"].startswith("always"))
    assert always["difference"]["mean"] == pytest.approx(told["accuracy"] - always["accuracy"], abs=1e-12)
    assert all((row["verdict"] is None) == (row["difference"] is None) for row in told["baselines"])
    assert {row["name"]: row["verdict"] for row in told["baselines"]}["xz"] is None, "it has no tokens"


@pytest.mark.parametrize(
    ("low", "high", "loss", "accuracy"),
    [
        (0.1, 0.2, "loses", "ahead"),
        (-0.2, -0.1, "ahead", "loses"),
        (-0.1, 0.1, "ties", "ties"),
        (0.0, 0.1, "ties", "ties"),
    ],
)
def test_who_loses_is_said_by_intervals_alone(low: float, high: float, loss: str, accuracy: str) -> None:
    for figure, wanted in (("loss", loss), ("accuracy", accuracy)):
        assert with_verdict({"figure": figure, "low": low, "high": high})["verdict"] == wanted
    assert with_verdict(None) == {"difference": None, "verdict": None}


def test_one_document_tells_no_difference_to_baselines(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("owl\tthe owl met the bear\n", "utf-8")
    told = evaluate("runs/both", on=str(tmp_path / "one.tsv"), baselines=True)
    assert len(told["baselines"]) > 8 and all(row["difference"] is None for row in told["baselines"])


def test_a_label_that_the_model_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("wolf\tthe moon\nowl\tthe moon\n")
    error = refused(lambda: evaluate("runs/classifier", on=str(tmp_path / "new.tsv")))
    assert error.code == "data.label" and "wolf" in error.what and "new.tsv" in (error.where or "")
