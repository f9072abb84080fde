"""Tests of `lilliput generate`: flags, prompts, output, JSON, errors."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import FLAGS, CommandResult, lilliput, small_config, train_small, trained, write_text
from lilliput.cli.error_flags import flag
from lilliput.cli.generate import count_written, format_scores
from lilliput.errors import UserError
from lilliput.settings.tree import GenerateSettings


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained())


def as_json(*argv: str) -> Any:
    code, out, err = lilliput("generate", "mine", *argv, "--json")
    assert (code, err) == (0, ""), err
    return json.loads(out)


def texts(*argv: str) -> list[str]:
    return [sample["text"] for sample in as_json(*argv)["samples"]]


def errors_of(*argv: str) -> list[UserError]:
    result = lilliput("generate", "mine", *argv)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) <= max(3, len(result.errors))
    return result.errors


def codes(*argv: str) -> list[tuple[str, str | None]]:
    """Return the code and the place of each error."""
    return [(error.code, error.where) for error in errors_of(*argv)]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("Once\nThe bear went to\nA\nZoë sang\n", "utf-8")
    return path


# ---- texts


def test_the_keys_of_generated_json() -> None:
    output = as_json("--prompt", "Once", "--samples", "3", "--seed", "1")
    assert output.keys() == {"samples", "tokens_per_second", "engine", "mixture"} and output["mixture"] is None
    assert len(output["samples"]) == 3
    for sample in output["samples"]:
        assert list(sample) == ["prompt", "text", "tokens", "logprob", "finish", "score", "rank"]
        assert sample["prompt"] == "Once"
        assert sample["finish"] in ("end", "length")
        assert (sample["score"], sample["rank"]) == (None, None)
    assert output["tokens_per_second"] > 0


def test_seeds() -> None:
    write = ["--prompt", "The", "--tokens", "20"]
    first = texts(*write, "--seed", "7", "--samples", "2")
    assert texts(*write, "--seed", "7", "--samples", "2") == first
    assert texts(*write, "--seed", "8") == first[1:], "text i is drawn from seed + i"


def test_more_samples_than_the_batch() -> None:
    many = texts("--samples", "40", "--tokens", "3", "--seed", "1")
    assert len(many) == 40
    assert texts("--tokens", "3", "--seed", "40") == many[39:]
    assert texts("--samples", "40", "--tokens", "3", "--seed", "1", "--batch", "3") == many


def test_greedy_and_filters_of_one_token() -> None:
    (greedy,) = texts("--temperature", "0", "--seed", "1")
    for same in (["--temperature", "0"], ["--top-k", "1"], ["--min-p", "1"], ["--beams", "1"]):
        assert texts(*same, "--seed", "2") == [greedy], same


def test_the_prompt_of_the_run_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, "--generate.prompt", "One day", "--generate.stop", "e")
    assert code == 0, err
    assert "generate mytext 'One day'" in out
    assert lilliput("generate", "mytext").out.startswith("One day")
    assert not lilliput("generate", "mytext", "--prompt", "").out.startswith("One day")
    many = ["generate", "mytext", "--prompt", "", "--samples", "9", "--tokens", "50", "--json"]
    assert "e" not in "".join(sample["text"] for sample in json.loads(lilliput(*many).out)["samples"])
    output = json.loads(lilliput(*many, "--stop", "").out)["samples"]
    assert "e" in "".join(sample["text"] for sample in output), "none in place of the run's"


def test_stop_strings_are_never_printed_even_in_part() -> None:
    (plain,) = texts("--prompt", "The", "--tokens", "60", "--seed", "3")
    stop = plain[20:24]
    output = as_json("--prompt", "The", "--tokens", "60", "--seed", "3", "--stop", stop, "--stop", "never found")
    (sample,) = output["samples"]
    assert (sample["text"], sample["finish"]) == (plain[: plain.index(stop)], "stop")
    shown = lilliput("generate", "mine", "--prompt", "The", "--tokens", "60", "--seed", "3", "--stop", stop)
    assert shown.out == f"The{sample['text']}\n"


@pytest.mark.parametrize(
    ("flags", "unlike"),
    [
        (["--bad-words", "d", "--bad-words", "e"], None),
        (["--no-repeat-ngram", "2"], None),
        (["--frequency-penalty", "-5"], None),
        (["--repetition-penalty", "5", "--no-penalise-prompt"], ["--repetition-penalty", "5"]),
    ],
)
def test_every_flag_changes_the_text(flags: list[str], unlike: list[str] | None) -> None:
    """Each flag changes a text that is otherwise the same."""
    write = ["--prompt", "the bear saw the bear", "--tokens", "30", "--temperature", "0"]
    assert texts(*write, *flags) != texts(*write, *(unlike or []))


def test_there_is_a_flag_for_every_setting() -> None:
    help_text = lilliput("generate", "--help").out
    for field in dataclasses.fields(GenerateSettings):
        assert re.search(rf"^  {flag(field.name)}\b", help_text, re.MULTILINE), field.name


def test_none_switches_off_a_setting_of_the_run() -> None:
    assert texts("--top-k", "none", "--seed", "5") == texts("--seed", "5")


def test_a_fallback_engine_prints_a_note() -> None:
    code, out, err = lilliput("generate", "mine", "--engine", "auto", "--json")
    assert code == 0 and err.startswith("note: torch engine: "), err
    assert json.loads(out)["engine"] == "torch"
    (error,) = errors_of("--engine", "numba")
    assert (error.code, error.setting, error.where) == ("model.unsupported", "generate.engine", "--engine")


# ---- output


def test_text_is_printed_while_it_is_generated() -> None:
    write = ["--prompt", "Once", "--tokens", "5", "--seed", "3"]
    first, second = texts(*write, "--samples", "2")
    assert lilliput("generate", "mine", *write, "--samples", "2") == CommandResult(
        0, f"--- 1 of 2\nOnce{first}\n\n--- 2 of 2\nOnce{second}\n", ""
    )
    assert lilliput("generate", "mine", *write).out == f"Once{first}\n"


def test_alternatives_in_json() -> None:
    (sample,) = as_json("--tokens", "6", "--alternatives", "3", "--seed", "2")["samples"]
    assert len(sample["pieces"]) == sample["tokens"] == 6
    assert sum(piece["logprob"] for piece in sample["pieces"]) == pytest.approx(sample["logprob"], abs=1e-9)
    assert "".join(piece["text"] for piece in sample["pieces"]) == sample["text"]
    for piece in sample["pieces"]:
        assert list(piece) == ["id", "token", "text", "logprob", "entropy", "alternatives"]
        logprobs = [other["logprob"] for other in piece["alternatives"]]
        assert len(logprobs) == 3 and logprobs == sorted(logprobs, reverse=True)
        assert [other["logprob"] for other in piece["alternatives"] if other["id"] == piece["id"]] in (
            [],
            [pytest.approx(piece["logprob"], abs=1e-9)],
        )


def test_alternatives_as_a_table() -> None:
    write = ["--tokens", "3", "--seed", "2", "--prompt", "Once"]
    (text,) = texts(*write)
    output = lilliput("generate", "mine", *write, "--alternatives", "2").out.splitlines()
    assert output[0] == f"Once{text}"
    assert output[1].split() == ["token", "probability", "entropy", "(bits)", "most", "likely"]
    assert len(output) == 5
    assert all(re.search(r'^".+" +\d+\.\d% +\d\.\d\d  ".+" \d+\.\d%  +".+" \d+\.\d%$', line) for line in output[2:]), (
        output
    )


def test_the_best_texts_of_a_beam_search() -> None:
    search = ["--prompt", "Once", "--beams", "4", "--n-best", "3", "--tokens", "8"]
    found = as_json(*search)["samples"]
    assert [sample["rank"] for sample in found] == [1, 2, 3]
    assert len({sample["text"] for sample in found}) == 3
    scores = [sample["score"] for sample in found]
    assert scores == sorted(scores, reverse=True)
    for sample in found:
        assert sample["score"] == pytest.approx(sample["logprob"] / sample["tokens"], abs=1e-9)
    output = lilliput("generate", "mine", *search).out
    assert output == "\n".join(
        f"--- best {sample['rank']} of 3, score {sample['score']:.4f}\nOnce{sample['text']}\n" for sample in found
    )
    assert lilliput("generate", "mine", *search[:4], "--tokens", "8").out == f"Once{found[0]['text']}\n"


def test_fewer_texts_than_requested_give_a_note() -> None:
    search = [
        "--prompt",
        "Once",
        "--beams",
        "4",
        "--beam-groups",
        "2",
        "--diversity",
        "0",
        "--n-best",
        "4",
        "--tokens",
        "8",
    ]
    code, out, err = lilliput("generate", "mine", *search, "--json")
    found = json.loads(out)["samples"]
    assert code == 0 and len(found) == len({sample["text"] for sample in found}) == 2  # both groups find the same
    assert "2 of the 4 texts are missing" in err
    assert lilliput("generate", "mine", *search[:4], "--n-best", "4", "--tokens", "8").err == ""


def test_a_repeated_prompt_continues_each() -> None:
    both = as_json("--prompt", "Once", "--prompt", "A bee", "--tokens", "5", "--seed", "3")["samples"]
    assert [sample["prompt"] for sample in both] == ["Once", "A bee"]
    assert texts("--prompt", "A bee", "--tokens", "5", "--seed", "4") == [both[1]["text"]]
    assert codes("--prompt", "a", "--prompt", "c", "--prompts", "b.txt") == [("flag.conflict", None)]


def test_the_end_of_a_document_in_a_prompt_gives_a_note() -> None:
    code, out, err = lilliput("generate", "mine", "--prompt", "One.<|endoftext|>Two", "--tokens", "2")
    assert code == 0 and out.startswith("One.<|endoftext|>Two")
    assert "<|endoftext|> in a prompt is plain text" in err


def test_speed_counts_only_the_best_text_of_a_beam_search() -> None:
    found = as_json("--prompt", "Once", "--beams", "4", "--n-best", "3", "--tokens", "8")["samples"]
    assert count_written(found) == found[0]["tokens"] == 8
    assert (
        count_written(as_json("--prompt", "Once", "--samples", "3", "--tokens", "4", "--min-tokens", "4")["samples"])
        == 12
    )


def test_a_value_with_a_leading_dash_is_joined_to_its_flag() -> None:
    (error,) = errors_of("--stop", "The end", "--prompt", "-hello")
    assert (error.code, error.fix) == ("flag.missing", "use --prompt=-hello")
    (error,) = errors_of("--stop", "a", "--stop", "--$", "--tokens", "3")
    assert (error.code, error.fix) == ("flag.missing", "use --stop='--$'")
    assert lilliput("generate", "mine", "--prompt=-hello", "--tokens", "2").out.startswith("-hello")
    for words in (["--prompt", "--tokens", "3"], ["--prompt", "--tokens=3"], ["--tokens", "3", "--prompt"]):
        (error,) = errors_of(*words)
        assert (error.code, error.fix) == ("flag.missing", "use --prompt TEXT")


def test_the_prompt_may_follow_the_run() -> None:
    written = as_json("Once upon", "--tokens", "3")["samples"]
    assert (
        written == as_json("--prompt", "Once upon", "--tokens", "3")["samples"] and written[0]["prompt"] == "Once upon"
    )
    for words in (["--prompt", "One"], ["--prompts", "absent.txt"]):
        codes = [error.code for error in errors_of("Once", *words)]
        assert codes[0] == "flag.conflict"
    (error,) = errors_of("Once", "upon")
    assert error.code == "flag.unknown"


def test_fixes_name_the_flags_of_the_command() -> None:
    (error,) = errors_of("--beams", "2", "--top-k", "5")
    assert error.setting == "generate.top_k" and error.what.startswith("--top-k ")
    assert "--sample-beams" in error.fix and "generate." not in error.what + error.fix
    (error,) = errors_of("--beams", "2", "--n-best", "3")
    assert error.what.startswith("--n-best ") and "--beams" in error.fix


def test_the_first_line_names_the_flag_once() -> None:
    (error,) = errors_of("--seed", "abc")
    assert error.what.startswith("--seed ") and error.place is None


def test_a_switch_accepts_true_and_false() -> None:
    flags = ("Once", "--beams", "2", "--tokens", "3")
    drawn = as_json(*flags, "--sample-beams", "true")["samples"]
    assert drawn == as_json(*flags, "--sample-beams")["samples"]
    assert as_json(*flags, "--sample-beams", "false")["samples"] == as_json(*flags)["samples"]
    (error,) = errors_of("--json", "yes", "more")
    assert error.code == "flag.unknown"


def test_different_scores_look_different() -> None:
    assert format_scores([-0.5637, -0.56371]) == ["-0.56370", "-0.56371"]
    assert format_scores([-0.5, -0.5, -0.25]) == ["-0.5000", "-0.5000", "-0.2500"]
    assert format_scores([0.123456789, 0.1234567891]) == ["0.12345679"] * 2


def test_headings_count_the_texts_that_were_found(prompts: Path) -> None:
    """Two groups without diversity find the same two texts."""
    search = ["--beams", "4", "--beam-groups", "2", "--diversity", "0", "--n-best", "4", "--tokens", "4"]
    output = lilliput("generate", "mine", "--prompt", "Once", *search).out
    assert [line.split(",")[0] for line in output.splitlines() if line.startswith("---")] == [
        "--- best 1 of 2",
        "--- best 2 of 2",
    ]
    output = lilliput("generate", "mine", "--prompts", str(prompts), *search).out
    assert re.findall(r"--- (\d) of 4, best (\d) of 2, score -", output) == [(p, b) for p in "1234" for b in "12"]


# ---- prompts


def test_prompts_keep_their_order_for_any_batch(prompts: Path) -> None:
    asked = prompts.read_text("utf-8").splitlines()
    output = as_json("--prompts", str(prompts), "--tokens", "9", "--seed", "4")["samples"]
    assert [sample["prompt"] for sample in output] == asked
    for batch in (
        "1",
        "2",
        "3",
    ):  # texts are equal in float64; the rounding of torch products depends on the number of rows
        again = as_json("--prompts", str(prompts), "--tokens", "9", "--seed", "4", "--batch", batch)["samples"]
        assert again == [{**sample, "logprob": pytest.approx(sample["logprob"], rel=1e-12)} for sample in output]
    for row, sample in enumerate(output):
        assert texts("--prompt", asked[row], "--tokens", "9", "--seed", str(4 + row)) == [sample["text"]]
    shown = lilliput("generate", "mine", "--prompts", str(prompts), "--tokens", "9", "--seed", "4", "--batch", "2").out
    numbered = enumerate(output, start=1)
    assert shown == "\n".join(f"--- {n} of 4\n{sample['prompt']}{sample['text']}\n" for n, sample in numbered)


def test_samples_and_beams_of_each_prompt(prompts: Path) -> None:
    asked = prompts.read_text("utf-8").splitlines()
    output = as_json("--prompts", str(prompts), "--samples", "2", "--tokens", "3")["samples"]
    assert [sample["prompt"] for sample in output] == [prompt for prompt in asked for _ in range(2)]
    search = ["--beams", "3", "--n-best", "2", "--tokens", "4"]
    found = as_json("--prompts", str(prompts), *search)["samples"]
    assert [(sample["prompt"], sample["rank"]) for sample in found] == [(p, rank) for p in asked for rank in (1, 2)]
    by_two = as_json("--prompts", str(prompts), *search, "--batch", "6")["samples"]
    assert [sample["text"] for sample in by_two] == [sample["text"] for sample in found]


def test_prompts_from_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffOnce\r\n Zoë ".encode())))
    output = as_json("--prompts", "-", "--tokens", "2")["samples"]
    assert [sample["prompt"] for sample in output] == ["Once", " Zoë "], "spaces are tokens"


def test_blank_lines_are_skipped_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("\nOnce\n  \nThe\n")
    code, out, err = lilliput("generate", "mine", "--prompts", str(path), "--tokens", "2", "--json")
    assert (code, err) == (0, f"note: {path}: skipped 2 blank lines (1, 3)\n")
    assert [sample["prompt"] for sample in json.loads(out)["samples"]] == ["Once", "The"]


@pytest.mark.parametrize("prompt", ["", "Zoë 日本 🐝", "\udcff broken", "a\nb"])
def test_any_prompt(prompt: str) -> None:
    code, out, err = lilliput("generate", "mine", "--prompt", prompt, "--tokens", "4")
    assert (code, err) == (0, "")
    out.encode()


def test_prompts_longer_than_the_context_print_a_note(tmp_path: Path) -> None:
    code, out, err = lilliput("generate", "mine", "--prompt", "long " * 20, "--tokens", "4")
    assert code == 0
    assert err.startswith("note: the prompt has 101 tokens, more than the context of 32: ") and err.endswith(" 16\n")
    assert out.startswith("long long")
    path = tmp_path / "p.txt"
    path.write_text("short\n" + "long " * 20 + "\n" + "longer " * 20)
    err = lilliput("generate", "mine", "--prompts", str(path), "--tokens", "2").err
    assert err.startswith("note: 2 of 3 prompts have up to 141 tokens")


# ---- errors


def test_all_errors_at_once_with_their_flags() -> None:
    flags = ("--top-p", "2", "--beams", "few", "--samples", "0", "--engine", "steam", "--seed", "-1")
    assert [(error.code, error.setting, error.where) for error in errors_of(*flags)] == [
        ("flag.value", None, "--samples"),
        ("flag.value", None, "--seed"),
        ("setting.value", "generate.top_p", "--top-p"),
        ("setting.value", "generate.beams", "--beams"),
        ("setting.choice", "generate.engine", "--engine"),
    ]


def test_flags_that_conflict() -> None:
    (error,) = errors_of("--n-best", "3")
    assert error.code == "flag.conflict" and "--beams 3" in str(error.fix)
    (error,) = errors_of("--n-best", "3", "--beams", "2")
    assert (error.code, error.setting, error.where) == ("request.invalid", "generate.beams", "--beams")
    samples, alternatives = errors_of("--beams", "2", "--samples", "3", "--alternatives", "2")
    assert samples.code == alternatives.code == "flag.conflict"
    assert "--n-best 3" in str(samples.fix) and "--beams none" in str(samples.fix)
    assert codes("--beams", "4", "--beam-groups", "2", "--sample-beams") == [("setting.conflict", "--beam-groups")]
    assert codes("--beams", "4", "--length-penalty", "11") == [("setting.value", "--length-penalty")]
    assert codes("--prompt", "a", "--prompts", "b.txt") == [("flag.conflict", None)]
    assert codes("--beams", "3", "--temperature", "0.5") == [("setting.conflict", "--temperature")]


def test_settings_that_conflict_are_reported_with_their_flags() -> None:
    found = errors_of("--diversity", "0.3", "--min-tokens", "50", "--tokens", "9")
    assert [(error.code, error.setting, error.where) for error in found] == [
        ("setting.conflict", "generate.diversity", "--diversity"),
        ("setting.conflict", "generate.min_tokens", "--min-tokens"),
    ]


@pytest.fixture(scope="module")
def run_with_beams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beams")
    run, _ = train_small(small_config(folder, generate__beams="3", generate__length_penalty="2"))
    return run.folder


@pytest.mark.parametrize(
    "flags", [["--samples", "2"], ["--alternatives", "2"], ["--top-p", "0.9"], ["--temperature", "1.5"]]
)
def test_a_run_with_beam_search_settings(run_with_beams: Path, flags: list[str]) -> None:
    write = ["generate", str(run_with_beams), "--tokens", "6", "--engine", "torch", "--json"]
    assert json.loads(lilliput(*write).out)["samples"][0]["rank"] == 1
    code, out, err = lilliput(*write, *flags)
    assert code == 0, err
    assert [line.split(":")[0] for line in err.splitlines()] == ["note", "note"]
    assert all(f"ignored {flag}: " in err for flag in ("--beams", "--length-penalty"))
    assert out.count('"rank": null') == (2 if flags[0] == "--samples" else 1)
    plain = lilliput(*write, *flags, "--beams", "none", "--length-penalty", "1")
    assert json.loads(plain.out)["samples"] == json.loads(out)["samples"]
    assert lilliput(*write, *flags, "--beams", "2").code == 2, "both are flags"


@pytest.mark.parametrize("beams", ["none", "2"])
def test_impossible_constraints_are_reported_before_any_output(beams: str) -> None:
    (error,) = errors_of("--prompt", "Once", "--tokens", "3", "--forced-words", "elephant", "--beams", beams)
    assert (error.code, error.setting) == ("setting.conflict", "generate.forced_words")
    assert error.where == "--forced-words" and "9" in error.what


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (b"Once\ncaf\xe9", "file.not-utf8", ", line 2, byte 8"),
        (b"", "prompt.empty", ""),
        (b" \n\n", "prompt.empty", ""),
    ],
)
def test_a_prompt_file_without_prompts(content: bytes, code: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(content)
    assert codes("--prompts", str(path)) == [(code, f"{path}{place}")]


def test_a_missing_prompt_file(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothere.txt")
    assert codes("--prompts", str(tmp_path)) == [("file.is-folder", str(tmp_path))]
    assert codes("--prompts", missing) == [("file.missing", missing)]
    assert codes("--prompts", missing, "--top-p", "2") == [("setting.value", "--top-p"), ("file.missing", missing)]


def test_errors_are_reported_before_stdin_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert codes("--prompts", "-", "--top-p", "2") == [("setting.value", "--top-p")]


# ---- processes


def test_unneeded_modules_are_not_imported() -> None:
    code = (
        "import sys; from lilliput.cli import main; main(['generate', 'mine', '--tokens', '1', '--engine', 'torch'])\n"
        "heavy = {'matplotlib', 'transformers', 'pyarrow', 'numba', 'scipy', 'pandas', 'tyro', 'tensorboard', 'gensim'}\n"
        "print(*heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a POSIX system")
def test_ctrl_c_during_generation() -> None:
    words = ["generate", "mine", "--tokens", "100000", "--min-tokens", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lilliput", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        process.stdout.read(1)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.decode() == "\nlilliput: stopped\n"
