"""Tests of `lilliput evaluate`: keys, tables, files and examples."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from helpers.evaluated_runs import judged_runs
from helpers.small_runs import lilliput
from lilliput.api.evaluation_tables import format_generation, sentences, verdict_sentences
from lilliput.cli.evaluate import EXAMPLES, OverlapFlags
from lilliput.settings.tree import GenerateSettings


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(judged_runs())


def as_json(*argv: str) -> dict[str, Any]:
    code, out, err = lilliput("evaluate", *argv, "--json")
    assert (code, err) == (0, ""), err
    found: dict[str, Any] = json.loads(out)
    return found


def shown(*argv: str) -> str:
    code, out, err = lilliput("evaluate", *argv)
    assert (code, err) == (0, ""), err
    assert all(len(line) <= 130 for line in out.splitlines())
    return out


def test_the_keys_of_the_json_output() -> None:
    output = as_json("words", "--overlap", "--prompts", "3", "--tokens", "8", "--temperature", "0")
    keys = "loss perplexity bits_per_byte word_perplexity unknown_rate tokens bytes interval floor bleu"
    assert output.keys() >= set(keys.split())
    assert all(len(output["interval"][name]) == 2 for name in ("loss", "perplexity", "bits_per_byte"))
    assert output["floor"] is None and output["bleu"].keys() >= {"1", "2", "3", "4", "signature", "interval"}
    assert output["overlap"]["generate"]["temperature"] == 0
    output = as_json("classifier", "--on", "heard")
    assert output.keys() >= {"accuracy", "interval", "confusion"} and len(output["interval"]["accuracy"]) == 2
    assert sum(map(sum, output["confusion"])) == 11


def test_printed_output_of_a_language_model() -> None:
    out = shown("words", "--by", "position", "--by", "frequency")
    assert "words at step-0000" in out and "4 documents" in out
    assert "windows of 32 tokens, aligned as in training; each token is predicted once" in out
    assert "bits per byte, <unk> spelled" in out and "not leaked" in out
    assert "leaked documents: 1 of 4 " in out
    assert re.search(r"^17 to 32 ", out, re.MULTILINE) and re.search(r"^unknown words ", out, re.MULTILINE)
    assert "one every 5 tokens" in shown("words", "--stride", "5")


def test_both_shares_of_unknown_words_name_their_denominator() -> None:
    """The sentence excludes ends of documents, as `prepare` does; the table includes them."""
    output, out = as_json("words"), shown("words", "--by", "frequency")
    unknown = output["by"]["frequency"][-1]["tokens"]
    own, whole = f"{unknown / (output['tokens'] - output['documents']):.2%}", f"{unknown / output['tokens']:.1%}"
    assert f"unknown words: {own} of the tokens (ends of documents not counted)" in out
    assert re.search(r"^occurrences in training +tokens +share of all tokens ", out, re.MULTILINE)
    assert re.search(rf"^unknown words +{unknown} +{whole} ", out, re.MULTILINE)


def test_printed_output_of_sets_and_overlapping_windows() -> None:
    out = shown("words", "--on", "tests", "--overlapping")
    assert "at every offset" in out and re.search(r"^held +4 ", out, re.MULTILINE)
    assert "exp(mean of batch losses)" in out


def test_printed_output_of_a_classifier() -> None:
    out = shown("classifier", "--on", "heard")
    assert "accuracy" in out and "actual / predicted" in out and "calibration error" in out
    assert "perplexity" not in out
    assert re.search(r"^macro F1 +\d+\.\d% +\d+\.\d%", out, re.MULTILINE), "also without leaked documents"
    assert re.search(r"calibration error \d+\.\d% \(\d+\.\d% without leaked documents\)", out)


def test_printed_output_of_the_storybook() -> None:
    out = shown("storybook")
    assert "floor: " in out and "is worse than a unigram model" in out, "after three steps"
    output = as_json("storybook")
    output["gap"]["closed"] = 0.873
    assert any(sentence.startswith("this model closes 87.3% of the gap") for sentence in sentences(output))
    output["gap"]["closed"] = 0.99963
    assert any(sentence.startswith("this model closes 99.96% of the gap") for sentence in sentences(output))


def test_printed_table_of_baselines() -> None:
    out = shown("words", "--baselines")
    table = out[out.index("baseline  ") :]
    assert "Kneser-Ney, order 5" in table and "this model" in table and "xz after reading" in table


def test_a_model_of_both_tasks_has_baselines_of_both_kinds() -> None:
    out = shown("both", "--on", "heard", "--baselines")
    tokens, labels = out[out.index("baseline  ") :].split("\n\n")
    assert "Kneser-Ney, order 5" in tokens and "accuracy" not in tokens
    assert "always" in labels and "this model" in labels and "bits per byte" not in labels


def test_a_model_worse_than_baselines_is_reported_as_worse() -> None:
    out = " ".join(shown("classifier", "--on", "heard", "--baselines").split())
    assert (
        "compared by accuracy: worse than 2 of 3 baselines (TF-IDF + logistic regression, naive Bayes), "
        "not significantly different from 1 (always predicts bee)"
    ) in out
    out = " ".join(shown("words", "--baselines").split())
    assert "compared by loss: worse than 6 of 6 baselines" in out
    assert out.endswith(
        "without a confidence interval, compared by bits per byte, <unk> spelled: worse than 4 of 4 baselines"
    )


def test_all_verdicts_of_the_comparison_with_baselines() -> None:
    """Rows without a confidence interval are compared by value."""
    verdicts = {1.0: "ahead", 2.0: "ties", 4.0: "loses", 5.0: None, 2.5: None, 3.0: None}
    rows: list[dict[str, Any]] = [{"name": f"#{one:g}", "accuracy": one, "verdict": verdicts[one]} for one in verdicts]
    found = [*verdict_sentences([*rows, {"name": "this model", "accuracy": 3.0, "own": True}], "accuracy")]
    assert found[1:3] == [
        "compared by accuracy: worse than 1 of 3 baselines (#4), better than 1 (#1), not significantly different from 1 (#2)",
        "baselines without a confidence interval, compared by accuracy: worse than 1 of 3 baselines (#5), "
        "at least as good as 2 (#2.5, #3)",
    ]
    assert len(found) == 4, "and the rule of significance"
    rows = [{"name": "[xz]", "bits_per_byte": 1.0, "verdict": None}, {"name": "own", "bits_per_byte": 2.0, "own": True}]
    expected = "baselines without a confidence interval, compared by bits per byte: worse than 1 of 1 baselines ([xz])"
    assert [*verdict_sentences(rows, "bits_per_byte")][1:] == [expected]


def test_differences_of_accuracy_are_in_percentage_points() -> None:
    rows = {row["name"]: row for row in as_json("classifier", "--on", "heard", "--baselines")["baselines"]}
    low, high = (rows["naive Bayes"]["difference"][end] for end in ("low", "high"))
    assert -1 <= low < 0, "shares in JSON"
    out = shown("classifier", "--on", "heard", "--baselines")
    assert "difference: accuracy of the model minus accuracy of the baseline in percentage points" in " ".join(
        out.split()
    )
    assert re.search(rf"^naive Bayes +100.0% +{100 * low:+.1f} to {100 * high:+.1f}$", out, re.MULTILINE)


def test_unknown_words_are_spelled_in_the_comparison_with_compressors() -> None:
    output = as_json("words", "--baselines")
    rows = {row["name"]: row for row in output["baselines"]}
    zstd, grams = rows["zstd"], rows["Kneser-Ney, order 5"]
    assert output["bits_per_byte"] < zstd["bits_per_byte"] < output["bits_per_byte_spelled"], (
        "else there is nothing to see"
    )
    assert zstd["bits_per_byte_spelled"] == zstd["bits_per_byte"], "a compressor has no unknown words"
    spelling = output["bits_per_byte_spelled"] - output["bits_per_byte"]
    assert grams["bits_per_byte_spelled"] - grams["bits_per_byte"] == pytest.approx(spelling, rel=1e-12)
    table = shown("words", "--baselines").partition("baseline  ")[2]
    assert table.index("zstd  ") < table.index("this model")


def test_missing_parts_print_a_note() -> None:
    assert "--by label requires" in shown("words", "--by", "label")
    out = shown("classifier", "--by", "position", "--by", "set")
    assert "--by position requires" in out and "--by set requires" in out
    assert "requires" not in shown("words", "--by", "position")


def test_one_short_document_has_no_interval(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("The owl met the bear.", "utf-8")
    out = shown("words", "--on", str(tmp_path / "one.txt"), "--baselines")
    assert "confidence intervals over" not in out and not re.search(r"[+-]\d\.\d{3} to ", out)


def test_csv_and_overlap_csv_must_differ(tmp_path: Path) -> None:
    flags = ("--csv", "a.csv", "--overlap-csv", f"{tmp_path.name}/../a.csv")
    (judged_runs() / tmp_path.name).mkdir()
    result = lilliput("evaluate", "words", "--overlap", *flags)
    assert result.code == 2 and [error.code for error in result.errors] == ["flag.conflict"]
    assert not Path("a.csv").exists()


def test_csv_files_are_written(tmp_path: Path) -> None:
    samples, documents = tmp_path / "samples.csv", tmp_path / "documents.csv"
    flags = ("--overlap", "--prompts", "2", "--tokens", "6", "--beams", "2", "--overlap-csv", str(samples))
    out = shown("words", *flags, "--csv", str(documents))
    assert "2 continuations of 6 tokens" in out and "BLEU-4" in out
    for path, rows in ((samples, 2), (documents, 4)):
        with open(path, encoding="utf-8", newline="") as file:
            assert len(list(csv.DictReader(file))) == rows


def test_overlap_prints_prompts_decoding_and_signatures() -> None:
    """One document leaked and is excluded, so that there are three prompts instead of five."""
    flags = ("--overlap", "--prompts", "5", "--prompt-tokens", "2", "--tokens", "6", "--top-k", "9", "--seed", "2")
    out = " ".join(shown("words", *flags).split())
    assert (
        "prompts: 3 of 5 requested (1 distinct): the first 2 tokens of documents at equal intervals (--prompt-choice spread)"
        in out
    )
    assert "warning: few prompts are distinct" in out and "--prompt-tokens above 2" in out
    assert "decoding: temperature 0.7, top_k 9, seed 2" in out
    assert re.search(
        r"BLEU-n: corpus BLEU of sacrebleu with orders 1 to n, nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp", out
    )
    assert "chrF: nrefs:1|case:mixed" in out and "5 other definitions" in out
    flags = ("--overlap", "--prompts", "2", "--prompt-tokens", "7", "--tokens", "6")
    out = " ".join(shown("words", *flags, "--temperature", "0").split())
    assert "few prompts" not in out
    assert "prompts: 2 (2 distinct): the first 7 tokens " in out and ") decoding: greedy perplexity" in out
    assert "decoding: beams 2 perplexity" in " ".join(shown("words", *flags, "--beams", "2").split())
    assert as_json("words", "--overlap", "--tokens", "6")["overlap"]["asked_prompts"] == 50


@pytest.mark.parametrize("choice", ["random", "middle"])
def test_the_choice_of_prompts(choice: str) -> None:
    flags = ("--overlap", "--prompts", "3", "--tokens", "6", "--prompt-choice", choice, "--temperature", "0")
    first, same, other = (
        as_json("words", *flags, *seed, "--samples") for seed in ((), ("--seed", "0"), ("--seed", "5"))
    )
    assert first["samples"] == same["samples"] != other["samples"]
    used = other["overlap"]["task"]
    assert (used["prompt_choice"], used["seed"], used["prompts"]) == (choice, 5, 3)
    assert 1 <= other["overlap"]["different_prompts"] <= 3
    assert f"(--prompt-choice {choice}, seed 5)" in " ".join(shown("words", *flags, "--seed", "5").split())


def test_samples_in_all_outputs(tmp_path: Path) -> None:
    flags = ("--overlap", "--prompts", "3", "--tokens", "6", "--temperature", "0")
    path = tmp_path / "samples.csv"
    whole = as_json("words", *flags, "--samples", "--full-reference", "--overlap-csv", str(path))
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{name: str(value) for name, value in row.items()} for row in whole["samples"]]
    assert whole["overlap"]["task"]["full_reference"] is True
    short = as_json("words", *flags, "--samples")
    assert "samples" not in as_json("words", *flags)
    for one, other in zip(short["samples"], whole["samples"], strict=True):
        assert (one["prompt"], one["generated"]) == (other["prompt"], other["generated"])
        assert other["reference"].startswith(one["reference"]) and len(other["reference"]) > len(one["reference"])
    out = shown("words", *flags, "--samples")
    assert out.count("sentence BLEU-4") == 3 and "3 of 3 samples" in out
    assert "the whole rest of each document" in shown("words", *flags, "--full-reference")


@pytest.mark.parametrize(
    ("run", "flags", "code"),
    [
        ("words", ("--samples",), "flag.conflict"),
        ("words", ("--prompt-choice", "middle"), "flag.conflict"),
        ("words", ("--overlap", "--prompt-choice", "end"), "flag.value"),
        ("words", ("--overlap", "--seed", "-1"), "flag.value"),
        ("classifier", ("--overlap", "--samples"), "model.task"),
    ],
)
def test_flags_of_samples_that_are_wrong(run: str, flags: tuple[str, ...], code: str) -> None:
    result = lilliput("evaluate", run, *flags)
    assert result.code == 2 and [error.code for error in result.errors] == [code]
    assert all(len(str(error).splitlines()) <= 3 for error in result.errors)


def test_format_of_decoding_settings() -> None:
    def output(**changes: Any) -> str:
        return format_generation(asdict(GenerateSettings(**changes)), 3)

    assert output() == "temperature 0.7, seed 3"
    assert output(temperature=0.0, min_tokens=4, tokens=9, engine="torch") == "greedy, min_tokens 4"
    assert output(beams=4, length_penalty=0.5) == "beams 4, length_penalty 0.5"
    assert output(beams=4, sample_beams=True) == "temperature 0.7, beams 4, sample_beams true, seed 3"
    assert output(stop=("The end", "[x]")) == "temperature 0.7, stop 'The end' '[x]', seed 3"


def test_metrics_by_label_of_any_file() -> None:
    assert re.search(r"^owl +13 ", shown("words", "--on", "said.tsv", "--by", "label"), re.MULTILINE)


def test_output_of_stories() -> None:
    out = shown("storybook", "--stories", "3", "--temperature", "0.5")
    assert "3 texts" in out and re.search(r"^valid stories .*  0.0% .0.0% to 56.1%. +100.0%$", out, re.MULTILINE)
    assert "valid stories" not in shown("words", "--stories", "2")
    out = shown("storybook", "--stories", "2", "--on", "mytext.txt")
    assert re.search(r"^valid stories .*0.0% to 65.8%. +-$", out, re.MULTILINE)
    output = as_json("storybook", "--stories", "2")["stories"]
    assert output["written"]["texts"] == output["reference"]["texts"] == 2 and output["valid"] == 0.0


def test_generation_flags_equal_the_settings() -> None:
    assert vars(OverlapFlags()).items() <= vars(GenerateSettings()).items()


def test_errors_are_reported_before_torch_is_imported() -> None:
    words = ["evaluate", "words", "--on", "nobody", "--stride", "99"]
    code = (
        f"import sys; from lilliput.cli import run_command; ended = run_command({words!r})\n"
        "assert 'torch' not in sys.modules; print(ended.code, *(error.code for error in ended.error.errors))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "evaluation.set", "setting.value"]


def test_every_example_runs(tmp_path: Path) -> None:
    """Run with small runs, in a separate folder."""
    runs = {"demo": "storybook", "speech-lm": "words", "speech-classifier": "classifier"}
    for line in importlib.import_module("lilliput.cli.evaluate").EXAMPLES.strip().splitlines():
        words = shlex.split(re.split(r"\s{2,}", line.strip())[0])[1:]
        words[1] = runs[words[1]]
        small = {"--on test": "--on heard", "--stride 64": "--stride 16", "documents.csv": str(tmp_path / "d.csv")}
        command = " ".join(words)
        for old, new in small.items():
            command = re.sub(rf"{old}(?!\w)", new, command)
        output = lilliput(*command.split(), *(["--prompts", "2"] if "--overlap" in words else []))
        assert output.code == 0, output.err
    assert "--overlap" in EXAMPLES
