"""Evaluation of runs on their own splits and on files: logged metrics, duplicates, unknown words, the floor, labels."""

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
from lilliput.data.prepare import prepare
from lilliput.data.storybook import floor_bits_per_byte
from lilliput.data.tokenizers.word_level import SPLITTERS
from lilliput.decoding.writer import load
from lilliput.errors import UserError
from lilliput.evaluation.baseline_comparison import with_verdict
from lilliput.evaluation.evaluate import evaluate, open_evaluation
from lilliput.evaluation.unknown_words import fit_speller
from lilliput.settings.loading import replace
from lilliput.storage.run_folders import RunFolder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(judged_runs())
    return judged_runs()


def event(run: Path, kind: str, name: str | None = None) -> dict[str, Any]:
    return next(
        one
        for one in RunFolder(run).metrics()
        if one["event"] == kind and one.get("whole", True) and one.get("name") in (None, name)
    )


def test_metrics_equal_the_runs_log() -> None:
    run = trained() / "runs" / "mine"
    result, own = evaluate(run), event(run, "evaluation")
    assert result["tokens"] == own["tokens"]
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert result[name] == pytest.approx(own[name], rel=1e-12), name
    assert (result["run"], result["checkpoint"], result["on"]) == ("mine", "step-000008", "validation")
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("name", ["classifier", "both"])
def test_test_set_metrics_equal_the_runs_log(name: str) -> None:
    result, own = evaluate(f"runs/{name}", on="heard"), event(Path("runs") / name, "test", "heard")
    assert result["accuracy"] == own["accuracy"] and result["documents"] == 11
    if name == "classifier":
        assert result["label_loss"] == pytest.approx(own["loss"], rel=1e-12)
    else:
        assert result["loss"] + result["label_loss"] == pytest.approx(own["loss"], rel=1e-12)
        assert result["interval"].keys() >= {"loss", "bits_per_byte", "accuracy"}
    json.dumps(result, allow_nan=False)


def test_a_file_gives_the_same_metrics_as_the_split_it_contains() -> None:
    """Encoded in memory by the checkpoint's tokenizer: the same tokens, texts, duplicates and metrics."""
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


def test_duplicates_of_training_are_reported_and_excluded() -> None:
    result = evaluate("runs/words", stride=5)
    rest = [text for text, leaked in zip(*texts_and_leaks("runs/words"), strict=True) if not leaked]
    Path("rest.txt").write_text("\n<|endoftext|>\n".join(rest), "utf-8")
    alone = evaluate("runs/words", on="rest.txt", stride=5)
    assert result["leaked"]["documents"] == 1 and alone["leaked"] == {"documents": 0, "without": None}
    for name in ("loss", "perplexity", "bits_per_byte", "bits_per_byte_spelled", "tokens", "unknown_rate"):
        assert result["leaked"]["without"][name] == pytest.approx(alone[name], rel=1e-12), name
    assert result["loss"] != alone["loss"] and result["stride"] == 5
    assert evaluate("runs/words", on="train")["leaked"]["documents"] == 0, "train is not compared with itself"


@pytest.mark.parametrize("name", ["classifier", "both"])
def test_label_metrics_are_reported_without_duplicates(name: str) -> None:
    result, evaluation = evaluate(f"runs/{name}", on="heard"), open_evaluation(f"runs/{name}", on="heard")
    assert evaluation.leaked is not None and evaluation.file.labels is not None and evaluation.labels is not None
    rest = np.flatnonzero(~evaluation.leaked)
    lines = [f"{evaluation.labels[evaluation.file.labels[at]]}\t{evaluation.texts[at]}\n" for at in rest]
    Path("rest.tsv").write_text("".join(lines), "utf-8")
    alone = evaluate(f"runs/{name}", on="rest.tsv")
    assert 0 < len(lines) < result["documents"]
    for figure in ("accuracy", "confusion", "classes", "macro_f1"):
        assert result["leaked"]["without"][figure] == alone[figure], figure
    assert result["leaked"]["without"]["calibration"]["error"] == pytest.approx(alone["calibration"]["error"], rel=1e-9)


def test_a_folder_named_train_is_not_the_training_split(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.txt").write_text(open_evaluation("runs/words", on="train").texts[0], "utf-8")
    assert evaluate("runs/words", on=str(tmp_path / "train"))["leaked"]["documents"] == 1


def test_multitask_intervals_of_one_document(tmp_path: Path) -> None:
    """The loss has an interval over blocks; the accuracy of one label has none."""
    (tmp_path / "one.tsv").write_text("owl\t" + "the bear met the owl " * 9 + "\n", "utf-8")
    result = evaluate("runs/both", on=str(tmp_path / "one.tsv"))
    assert result["documents"] == 1 and result["interval"].keys() >= {"loss", "bits_per_byte"}
    assert "accuracy" not in result["interval"]


def texts_and_leaks(run: str) -> tuple[list[str], list[bool]]:
    evaluation = open_evaluation(run)
    assert evaluation.leaked is not None
    return evaluation.texts, evaluation.leaked.tolist()


def test_spelling_cost_of_unknown_words() -> None:
    """The nats of the tokens plus, for each unknown word, those of its letters."""
    result, evaluation = evaluate("runs/words"), open_evaluation("runs/words")
    tokenizer = evaluation.writer.tokenizer
    speller, spelling, unknown, tokens = fit_speller(tokenizer), 0.0, 0, 0
    for text in evaluation.texts:
        for word, _ in SPLITTERS["words", "keep"].pre_tokenize_str(text):  # independent of the vocabulary
            tokens += 1
            if tokenizer.encode(word) == [tokenizer.unknown]:
                unknown, spelling = unknown + 1, spelling + speller.nats(word)
    assert unknown > 20 and result["unknown_rate"] == unknown / tokens
    nats = result["loss"] * result["tokens"]
    scale = math.log(2) * result["bytes"]
    assert result["bits_per_byte"] == pytest.approx(nats / scale, rel=1e-12)
    assert result["bits_per_byte_spelled"] == pytest.approx((nats + spelling) / scale, rel=1e-12)
    words = sum(len(text.split()) for text in evaluation.texts)
    assert result["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-12)
    assert result["word_perplexity_spelled"] == pytest.approx(math.exp((nats + spelling) / words), rel=1e-12)
    assert result["lossy"] and result["lost"] == ["which words were unknown", "white space"]


def test_joined_sets_contain_all_documents() -> None:
    result = evaluate("runs/words", on="tests")
    each = {name: evaluate("runs/words", on=name) for name in ("all", "held")}
    assert [row["name"] for row in result["by"]["set"]] == ["all", "held"]
    for row in result["by"]["set"]:
        for name in ("loss", "bits_per_byte", "tokens", "documents", "unknown_rate", "bits_per_byte_spelled"):
            assert row[name] == pytest.approx(each[row["name"]][name], rel=1e-12), name
    assert result["tokens"] == sum(one["tokens"] for one in each.values())
    nats = sum(one["loss"] * one["tokens"] for one in each.values())
    assert result["loss"] == pytest.approx(nats / result["tokens"], rel=1e-12)
    assert open_evaluation("runs/words", on="tests").texts == [
        text for name in each for text in open_evaluation("runs/words", on=name).texts
    ]


def test_labels_of_a_file_for_an_unlabelled_run() -> None:
    result = evaluate("runs/words", on="said.tsv", labelled=True)
    assert [row["name"] for row in result["by"]["label"]] == ["bear", "bee", "owl"]
    assert sum(row["tokens"] for row in result["by"]["label"]) == result["tokens"]
    assert evaluate("runs/words", on="said.tsv")["by"]["label"] == [], "labels are read as part of the text"


@pytest.mark.parametrize("line", ["no tab here", " \tthe moon", "x" * 999 + "\tthe moon"])
def test_missing_labels_raise_an_error(line: str, tmp_path: Path) -> None:
    """The error names the argument `labelled`, or the run's own settings."""
    (tmp_path / "plain.txt").write_text(f"owl\tthe sea\n{line}\n", "utf-8")
    error = refused(lambda: evaluate("runs/words", on=str(tmp_path / "plain.txt"), labelled=True))
    assert (error.code, error.setting) == ("data.label", "labelled")
    assert "plain.txt, line 2" in (error.where or "")
    error = refused(lambda: evaluate("runs/classifier", on=str(tmp_path / "plain.txt")))
    assert "plain.txt, line 2" in (error.where or "") and error.setting != "labelled"


def test_groups_add_up() -> None:
    result = evaluate("runs/words")
    for part in ("position", "frequency"):
        rows = result["by"][part]
        assert sum(row["tokens"] for row in rows) == result["tokens"]
        nats = sum(row["tokens"] * row["loss"] for row in rows)
        assert nats == pytest.approx(result["loss"] * result["tokens"], rel=1e-12)
    assert [row["to"] for row in result["by"]["position"]] == [1, 2, 4, 8, 16, 32]
    unknown = result["by"]["frequency"][-1]
    assert unknown["from"] is None and unknown["tokens"] == round(result["unknown_rate"] * (result["tokens"] - 4))


def test_frequencies_are_counted_in_training() -> None:
    evaluation = open_evaluation("runs/words")
    assert evaluation.train is not None
    counts = np.bincount(evaluation.train.tokens)
    known = [token for token in evaluation.file.tokens[1:] if token != evaluation.writer.tokenizer.unknown]
    expected = sum(int(10 <= counts[token] <= 99) for token in known)
    row = next(row for row in evaluate("runs/words")["by"]["frequency"] if row["from"] == 10)
    assert row["tokens"] == expected and row["to"] == 99


def test_overlapping_windows_equal_the_mean_of_batch_losses() -> None:
    """As in published protocols: every window of one long text, the mean of the batch means."""
    Path("long.txt").write_text("the bee saw the sea and the old bear lost the bell . " * 10, "utf-8")
    result = evaluate("runs/words", on="long.txt", overlapping=True)["overlapping"]
    writer = load("runs/words")
    ids = [writer.tokenizer.start, *writer.tokenizer.encode(Path("long.txt").read_text().strip()), writer.tokenizer.end]
    losses = []
    for at in range(len(ids) - 32):
        window = torch.tensor([ids[at : at + 33]])
        with torch.inference_mode():
            losses.append(F.cross_entropy(writer.model(window[:, :-1])[0], window[0, 1:]).item())
    assert result["windows"] == result["sets"][0]["windows"] == len(losses)
    assert result["loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert result["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-12)


def test_overlapping_windows_of_each_set() -> None:
    result = evaluate("runs/words", on="tests", overlapping=True)["overlapping"]
    alone = evaluate("runs/words", on="held", overlapping=True)["overlapping"]
    assert [row["name"] for row in result["sets"]] == ["all", "held"]
    assert result["sets"][1]["loss"] == pytest.approx(alone["loss"], rel=1e-12)
    assert result["windows"] == sum(row["windows"] for row in result["sets"])


def test_the_floor_and_the_gap() -> None:
    result = evaluate("runs/storybook")
    floor = floor_bits_per_byte(open_evaluation("runs/storybook").texts)
    gap = result["gap"]
    assert result["floor"] == gap["floor"] == floor < result["bits_per_byte"]
    assert gap["closed"] == pytest.approx((gap["start"] - result["bits_per_byte"]) / (gap["start"] - floor), rel=1e-12)
    assert floor < gap["start"] < 8.1, "a unigram model of bytes"
    assert evaluate("runs/words")["floor"] is None
    assert result["floor"] == event(Path("runs/storybook"), "evaluation")["floor"]


def test_intervals_contain_the_metric_and_name_their_unit() -> None:
    many, few = evaluate("runs/both", on="heard"), evaluate("runs/words")
    assert many["interval_over"] == "documents" and few["interval_over"] == "blocks of 32 tokens"
    for result in (many, few):
        for name in ("loss", "perplexity", "bits_per_byte"):
            low, high = result["interval"][name]
            assert low < result[name] < high, name


def test_the_csv_of_documents(tmp_path: Path) -> None:
    result = evaluate("runs/words", on="tests", csv=tmp_path / "documents.csv")
    with open(tmp_path / "documents.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["set"], int(row["document"])) for row in rows] == [
        *(("all", number) for number in range(12)),
        *(("held", number) for number in range(4)),
    ]
    assert sum(int(row["tokens"]) for row in rows) == result["tokens"]
    assert math.fsum(float(row["nats"]) for row in rows) == pytest.approx(result["loss"] * result["tokens"], rel=1e-12)
    assert [int(row["leaked"]) for row in rows].count(1) == result["leaked"]["documents"] == 13
    assert float(rows[3]["bits_per_byte"]) == pytest.approx(
        float(rows[3]["nats"]) / math.log(2) / int(rows[3]["bytes"]), rel=1e-12
    )


def test_dropped_documents_are_not_in_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are matched by their hashes: training texts are those that training used."""
    config = small_config(tmp_path, data__drop_duplicates="exact")
    source = tmp_path / "mytext.txt"
    documents = source.read_text("utf-8").split("\n<|endoftext|>\n")
    source.write_text("\n<|endoftext|>\n".join([*documents, documents[2], documents[0]]), "utf-8")
    run, _ = train_small(config)
    evaluation = open_evaluation(run.folder)
    assert evaluation.prepared is not None and evaluation.leaked is not None
    texts = evaluation.train_texts
    assert len(texts) == len(prepare(config).hashes("train")) < 13
    assert len(set(texts)) == len(texts) and not set(texts) & set(evaluation.texts)
    assert not evaluation.leaked.any()


def test_a_file_is_evaluated_without_training_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_trained(tmp_path)
    monkeypatch.chdir(folder)
    whole = evaluate("mine", on="mytext.txt")
    (folder / "mytext.txt").rename(folder / "other.txt")
    monkeypatch.setattr("lilliput.decoding.run_data.prepare", raise_error)
    messages: list[str] = []
    result = evaluate("mine", on="other.txt", report=lambda message, done, total: messages.append(message))
    assert result["loss"] == whole["loss"] and result["leaked"] is None and result["by"]["frequency"] == []
    assert any("training data" in line and "gone" in line for line in messages)
    error = refused(lambda: evaluate("mine", on="other.txt", baselines=True))
    assert (error.code, error.setting) == ("data.source", "baselines")


def raise_error(*_: object, **__: object) -> None:
    raise UserError("gone", fix="check the path", code="data.source")


def test_changed_data_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_trained(tmp_path)
    monkeypatch.chdir(folder)
    messages: list[str] = []
    here = {"data.source": str(folder / "mytext.txt"), "data.cache": str(folder / "prepared")}
    monkeypatch.setattr(
        "lilliput.decoding.run_data.prepare",
        lambda config, *rest, **named: prepare(replace(config, here), *rest, **named),
    )
    evaluate("mine", report=lambda message, done, total: messages.append(message))
    assert not any("has changed" in message for message in messages)
    with open("mytext.txt", "a", encoding="utf-8") as file:
        file.write("\n<|endoftext|>\nAnother bee came.\n")
    evaluate("mine", report=lambda message, done, total: messages.append(message))
    assert any("has changed" in message for message in messages)


def test_baselines() -> None:
    result = evaluate("runs/both", on="heard", baselines=True)
    names = [row["name"] for row in result["baselines"]]
    assert any(name.startswith("Kneser-Ney, order 3") for name in names) and "xz" in names
    assert any(name.startswith("always") for name in names)
    chosen = next(row for row in result["baselines"] if row["chosen"])
    difference = chosen["difference"]
    assert difference["mean"] == pytest.approx(result["loss"] - chosen["loss"], rel=1e-9)
    assert difference["low"] <= difference["mean"] <= difference["high"]
    always = next(row for row in result["baselines"] if row["name"].startswith("always"))
    assert always["difference"]["mean"] == pytest.approx(result["accuracy"] - always["accuracy"], abs=1e-12)
    assert all((row["verdict"] is None) == (row["difference"] is None) for row in result["baselines"])
    assert {row["name"]: row["verdict"] for row in result["baselines"]}["xz"] is None, "a compressor has no tokens"


@pytest.mark.parametrize(
    ("low", "high", "loss", "accuracy"),
    [
        (0.1, 0.2, "loses", "ahead"),
        (-0.2, -0.1, "ahead", "loses"),
        (-0.1, 0.1, "ties", "ties"),
        (0.0, 0.1, "ties", "ties"),
    ],
)
def test_verdicts_follow_from_intervals(low: float, high: float, loss: str, accuracy: str) -> None:
    for figure, expected in (("loss", loss), ("accuracy", accuracy)):
        assert with_verdict({"figure": figure, "low": low, "high": high})["verdict"] == expected
    assert with_verdict(None) == {"difference": None, "verdict": None}


def test_one_document_has_no_difference_to_baselines(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("owl\tthe owl met the bear\n", "utf-8")
    result = evaluate("runs/both", on=str(tmp_path / "one.tsv"), baselines=True)
    assert len(result["baselines"]) > 8 and all(row["difference"] is None for row in result["baselines"])


def test_an_unknown_label_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("wolf\tthe moon\nowl\tthe moon\n")
    error = refused(lambda: evaluate("runs/classifier", on=str(tmp_path / "new.tsv")))
    assert error.code == "data.label" and "wolf" in error.what and "new.tsv" in (error.where or "")
