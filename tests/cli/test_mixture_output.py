"""What `generate`, `chat`, `evaluate` and `train` print about a mixture with n-grams: it is always named."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from helpers.evaluated_runs import judged_runs
from helpers.small_runs import FLAGS, copy_of_trained, lilliput, small_config, train_small
from lilliput.api.mixture_tables import sentences
from lilliput.decoding.mixture_weights import describe_mixture
from lilliput.decoding.ngram_mixture import WEIGHTS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = copy_of_trained(tmp_path)
    monkeypatch.chdir(folder)
    return folder


def test_generate_prints_a_note_and_the_json_has_the_weight(here: Path) -> None:
    alone = lilliput("generate", "mine", "--seed", "1")
    assert (alone.code, alone.err) == (0, "")
    for share, origin in (("0.75", "given"), ("auto", "validation")):
        mixed = lilliput("generate", "mine", "--seed", "1", "--mix-ngram", share)
        assert mixed.code == 0 and mixed.out != alone.out
        assert "mixture" in mixed.err and "n-grams of order 5" in mixed.err
        found = json.loads(lilliput("generate", "mine", "--seed", "1", "--mix-ngram", share, "--json").out)
        assert found["samples"][0]["text"] == mixed.out.removesuffix("\n")
        assert found["mixture"]["weight_from"] == origin and found["mixture"]["ngram_order"] == 5
        assert share == "auto" or found["mixture"]["weight"] == 0.75
    assert json.loads(lilliput("generate", "mine", "--json").out)["mixture"] is None
    assert (here / "runs" / "mine" / WEIGHTS).exists()


def test_beams_of_the_mixture(here: Path) -> None:
    result = lilliput("generate", "mine", "--beams", "3", "--n-best", "2", "--mix-ngram", "0.9", "--json")
    best, second = json.loads(result.out)["samples"]
    assert result.code == 0 and best["score"] >= second["score"] and best["text"] != second["text"]


@pytest.mark.parametrize("value", ["1.5", "-0.1", "maybe"])
def test_wrong_values(value: str, here: Path) -> None:
    for command in ("generate", "evaluate"):
        result = lilliput(command, "mine", f"--mix-ngram={value}")
        (error,) = result.errors
        assert (result.code, error.setting) == (2, "generate.mix_ngram")


def test_errors_name_the_flag(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for command in ("generate", "evaluate"):
        (error,) = lilliput(command, "mine", "--mix-ngram", "0.5").errors
        assert (error.code, error.where) == ("setting.conflict", "--mix-ngram")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.chdir(judged_runs())
    (error,) = lilliput("evaluate", "classifier", "--mix-ngram", "auto").errors
    assert (error.code, error.where) == ("model.task", "--mix-ngram")


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path))
    (tmp_path / "mytext.txt").unlink()
    for command in ("generate", "evaluate"):
        result = lilliput(command, str(run.folder), "--mix-ngram", "0.5")
        assert result.code == 2 and "mytext.txt" in result.err and result.errors[0].setting is not None


def test_chat_prints_a_note(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["A bee", "/set mix_ngram 0.5", "", "/set mix_ngram none", "/set mix_ngram 7", ""]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    result = lilliput("chat", "mine", "--mix-ngram", "0.25")
    assert result.code == 0 and result.err.count("by a mixture") == 2
    assert "25.0% Kneser-Ney" in result.err and "50.0% Kneser-Ney" in result.err
    assert "(got '7')" in result.err


def test_evaluate_prints_a_block_of_its_own(here: Path) -> None:
    plain = lilliput("evaluate", "mine")
    mixed = lilliput("evaluate", "mine", "--mix-ngram", "0.4")
    assert mixed.code == 0 and mixed.out.startswith(plain.out.rstrip("\n"))
    block = mixed.out.removeprefix(plain.out.rstrip("\n"))
    rows = [line.split()[0] for line in block.splitlines() if line.startswith(("this model", "n-grams", "mixture "))]
    assert rows == ["this", "n-grams", "mixture"] and "40.0% Kneser-Ney n-grams of order 5" in " ".join(block.split())
    assert lilliput("evaluate", "mine", "--mix-ngram", "none").out == plain.out
    found = json.loads(lilliput("evaluate", "mine", "--mix-ngram", "auto", "--json").out)
    keys = "weight ngram_order loss perplexity bits_per_byte interval ngram weight_from weight_documents ngram_tokens"
    assert found["mixture"].keys() == set(keys.split())
    assert found["mixture"]["ngram"].keys() == {"loss", "perplexity", "bits_per_byte", "interval"}


def test_generated_texts_of_an_evaluation_name_the_mixture(here: Path) -> None:
    flags = ("--overlap", "--prompts", "2", "--tokens", "5", "--stories", "2", "--mix-ngram", "0.4")
    out = " ".join(lilliput("evaluate", "mine", *flags).out.split())
    assert out.count("generated by the mixture: 60.0% this model") == 2


def test_sentences_state_the_origin_of_the_weight() -> None:
    mixture = {"weight": 0.25, "weight_from": "halves", "weight_documents": None, "ngram_order": 5, "ngram_tokens": 10}
    (halves, *_) = sentences({"on": "validation", "mixture": mixture})
    assert "half" in halves
    fitted = mixture | {"weight_from": "validation", "weight_documents": 1234}
    first, second, *_ = sentences({"on": "train", "mixture": fitted})
    assert "1,234 documents" in first and "training split" in second
    assert "validation" in describe_mixture(fitted) and "validation" not in describe_mixture(mixture)
    assert "first 10,000,000 tokens" in describe_mixture(mixture | {"ngram_tokens": 10_000_000})


def test_training_prints_samples_without_ngrams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples during and after training equal those of a run without the setting."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytext.txt").write_text("A bee saw the sea.\n<|endoftext|>\n" * 60, "utf-8")
    flags = [*FLAGS, "--log.sample_seconds", "1e-9", "--generate.temperature", "0"]
    alone = lilliput("train", "mytext.txt", *flags, "--name", "alone")
    mixed = lilliput("train", "mytext.txt", *flags, "--name", "mixed", "--generate.mix_ngram", "0.9")
    assert alone.code == mixed.code == 0, mixed.err
    assert "without n-grams" in mixed.err and "without n-grams" not in alone.err
    samples = [
        result.out[result.out.index("sample 1 of 3") : result.out.index("run folder")] for result in (alone, mixed)
    ]
    assert samples[0] == samples[1]
    during = [[line for line in result.err.splitlines() if line.startswith("A bee")] for result in (alone, mixed)]
    assert during[0] == during[1]


def test_a_classifier_does_not_accept_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(judged_runs())
    flags = ("--data.labelled", "true", "--model.task", "classifier", "--generate.mix_ngram", "auto")
    (error,) = lilliput("train", "said.tsv", "--dry-run", *flags).errors
    assert (error.code, error.setting) == ("setting.conflict", "generate.mix_ngram")
