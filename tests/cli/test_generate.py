"""`lilliput generate` as its user meets it: flags, prompts, what is shown, JSON, mistakes."""

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
from lilliput.cli.generate import count_written
from lilliput.cli.generation_flags import changed, flag
from lilliput.errors import UserErrors
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


def refused(*argv: str) -> str:
    code, out, err = lilliput("generate", "mine", *argv)
    assert (code, out) == (2, "")
    return err.removeprefix("lilliput: ")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("Once\nThe bear went to\nA\nZoë sang\n", "utf-8")
    return path


# ---- what is written


def test_the_keys_of_generated_json() -> None:
    told = as_json("--prompt", "Once", "--samples", "3", "--seed", "1")
    assert told.keys() == {"samples", "tokens_per_second", "engine"}
    assert len(told["samples"]) == 3
    for sample in told["samples"]:
        assert list(sample) == ["prompt", "text", "tokens", "logprob", "finish", "score", "rank"]
        assert sample["prompt"] == "Once"
        assert sample["finish"] in ("end", "length")
        assert (sample["score"], sample["rank"]) == (None, None)
    assert told["tokens_per_second"] > 0


def test_seeds() -> None:
    write = ["--prompt", "The", "--tokens", "20"]
    first = texts(*write, "--seed", "7", "--samples", "2")
    assert texts(*write, "--seed", "7", "--samples", "2") == first
    assert texts(*write, "--seed", "8") == first[1:], "text i is drawn from seed + i"


def test_more_samples_than_are_written_at_once() -> None:
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
    assert "--prompt 'One day'" in out
    assert lilliput("generate", "mytext").out.startswith("One day")
    assert not lilliput("generate", "mytext", "--prompt", "").out.startswith("One day")
    many = ["generate", "mytext", "--prompt", "", "--samples", "9", "--tokens", "50", "--json"]
    assert "e" not in "".join(sample["text"] for sample in json.loads(lilliput(*many).out)["samples"])
    told = json.loads(lilliput(*many, "--stop", "").out)["samples"]
    assert "e" in "".join(sample["text"] for sample in told), "none in place of the run's"


def test_stop_strings_are_never_shown_not_even_in_part() -> None:
    (plain,) = texts("--prompt", "The", "--tokens", "60", "--seed", "3")
    stop = plain[20:24]
    told = as_json("--prompt", "The", "--tokens", "60", "--seed", "3", "--stop", stop, "--stop", "never found")
    (sample,) = told["samples"]
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
def test_every_flag_reaches_the_writer(flags: list[str], unlike: list[str] | None) -> None:
    """By what it changes of a text that is otherwise the same."""
    write = ["--prompt", "the bear saw the bear", "--tokens", "30", "--temperature", "0"]
    assert texts(*write, *flags) != texts(*write, *(unlike or []))


def test_there_is_a_flag_for_every_setting() -> None:
    help_text = lilliput("generate", "--help").out
    for field in dataclasses.fields(GenerateSettings):
        assert re.search(rf"^  {flag(field.name)}\b", help_text, re.MULTILINE), field.name


def test_a_setting_of_the_run_is_switched_off_by_none() -> None:
    assert texts("--top-k", "none", "--seed", "5") == texts("--seed", "5")


def test_the_engine_is_told_where_it_is_not_the_expected_one() -> None:
    code, out, err = lilliput("generate", "mine", "--engine", "auto", "--json")
    assert code == 0 and err.startswith("torch engine: "), err
    assert json.loads(out)["engine"] == "torch"
    assert "float64" in refused("--engine", "numba")


# ---- what is shown


def test_text_is_printed_as_it_is_written() -> None:
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
    told = lilliput("generate", "mine", *write, "--alternatives", "2").out.splitlines()
    assert told[0] == f"Once{text}"
    assert told[1].split() == ["token", "probability", "entropy,", "bits", "likeliest"]
    assert len(told) == 5
    assert all(re.search(r'^".+" +\d+\.\d% +\d\.\d\d  ".+" \d+\.\d%  +".+" \d+\.\d%$', line) for line in told[2:]), told


def test_the_best_texts_of_a_beam_search() -> None:
    search = ["--prompt", "Once", "--beams", "4", "--n-best", "3", "--tokens", "8"]
    found = as_json(*search)["samples"]
    assert [sample["rank"] for sample in found] == [1, 2, 3]
    assert len({sample["text"] for sample in found}) == 3
    scores = [sample["score"] for sample in found]
    assert scores == sorted(scores, reverse=True)
    for sample in found:
        assert sample["score"] == pytest.approx(sample["logprob"] / sample["tokens"], abs=1e-9)
    told = lilliput("generate", "mine", *search).out
    assert told == "\n".join(
        f"--- best {sample['rank']} of 3, score {sample['score']:.4f}\nOnce{sample['text']}\n" for sample in found
    )
    assert lilliput("generate", "mine", *search[:4], "--tokens", "8").out == f"Once{found[0]['text']}\n"


def test_of_a_search_only_its_best_text_counts() -> None:
    found = as_json("--prompt", "Once", "--beams", "4", "--n-best", "3", "--tokens", "8")["samples"]
    assert count_written(found) == found[0]["tokens"] == 8
    assert (
        count_written(as_json("--prompt", "Once", "--samples", "3", "--tokens", "4", "--min-tokens", "4")["samples"])
        == 12
    )


def test_a_value_that_begins_with_a_dash_is_joined_to_its_flag() -> None:
    told = refused("--stop", "The end", "--prompt", "-hello")
    assert told == "argument --prompt: expected one argument\n  try --prompt=-hello\n"
    assert refused("--stop", "a", "--stop", "--$", "--tokens", "3").endswith("\n  try --stop='--$'\n")
    assert lilliput("generate", "mine", "--prompt=-hello", "--tokens", "2").out.startswith("-hello")
    for words in (["--prompt", "--tokens", "3"], ["--prompt", "--tokens=3"], ["--tokens", "3", "--prompt"]):
        told = refused(*words)
        assert told == "argument --prompt: expected one argument\n  try lilliput generate --help\n"


def test_headings_count_what_was_found(prompts: Path) -> None:
    """Two groups that are not led away from each other find the same two texts."""
    search = ["--beams", "4", "--beam-groups", "2", "--diversity", "0", "--n-best", "4", "--tokens", "4"]
    told = lilliput("generate", "mine", "--prompt", "Once", *search).out
    assert [line.split(",")[0] for line in told.splitlines() if line.startswith("---")] == [
        "--- best 1 of 2",
        "--- best 2 of 2",
    ]
    told = lilliput("generate", "mine", "--prompts", str(prompts), *search).out
    assert re.findall(r"--- (\d) of 4, best (\d) of 2, score -", told) == [(p, b) for p in "1234" for b in "12"]


# ---- prompts


def test_a_file_of_prompts_in_order_whatever_the_batch(prompts: Path) -> None:
    asked = prompts.read_text("utf-8").splitlines()
    told = as_json("--prompts", str(prompts), "--tokens", "9", "--seed", "4")["samples"]
    assert [sample["prompt"] for sample in told] == asked
    for batch in (
        "1",
        "2",
        "3",
    ):  # texts are equal in float64; torch's products round otherwise with the number of rows
        again = as_json("--prompts", str(prompts), "--tokens", "9", "--seed", "4", "--batch", batch)["samples"]
        assert again == [{**sample, "logprob": pytest.approx(sample["logprob"], rel=1e-12)} for sample in told]
    for row, sample in enumerate(told):
        assert texts("--prompt", asked[row], "--tokens", "9", "--seed", str(4 + row)) == [sample["text"]]
    shown = lilliput("generate", "mine", "--prompts", str(prompts), "--tokens", "9", "--seed", "4", "--batch", "2").out
    numbered = enumerate(told, start=1)
    assert shown == "\n".join(f"--- {n} of 4\n{sample['prompt']}{sample['text']}\n" for n, sample in numbered)


def test_samples_and_beams_of_each_prompt(prompts: Path) -> None:
    asked = prompts.read_text("utf-8").splitlines()
    told = as_json("--prompts", str(prompts), "--samples", "2", "--tokens", "3")["samples"]
    assert [sample["prompt"] for sample in told] == [prompt for prompt in asked for _ in range(2)]
    search = ["--beams", "3", "--n-best", "2", "--tokens", "4"]
    found = as_json("--prompts", str(prompts), *search)["samples"]
    assert [(sample["prompt"], sample["rank"]) for sample in found] == [(p, rank) for p in asked for rank in (1, 2)]
    by_two = as_json("--prompts", str(prompts), *search, "--batch", "6")["samples"]
    assert [sample["text"] for sample in by_two] == [sample["text"] for sample in found]


def test_prompts_from_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffOnce\r\n Zoë ".encode())))
    told = as_json("--prompts", "-", "--tokens", "2")["samples"]
    assert [sample["prompt"] for sample in told] == ["Once", " Zoë "], "spaces are tokens, too"


def test_blank_lines_are_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("\nOnce\n  \nThe\n")
    code, out, err = lilliput("generate", "mine", "--prompts", str(path), "--tokens", "2", "--json")
    assert (code, err) == (0, f"{path}: 2 blank lines are skipped (1, 3)\n")
    assert [sample["prompt"] for sample in json.loads(out)["samples"]] == ["Once", "The"]


@pytest.mark.parametrize("prompt", ["", "Zoë 日本 🐝", "\udcff broken", "a\nb"])
def test_any_prompt(prompt: str) -> None:
    code, out, err = lilliput("generate", "mine", "--prompt", prompt, "--tokens", "4")
    assert (code, err) == (0, "")
    out.encode()


def test_prompts_longer_than_the_context_are_told(tmp_path: Path) -> None:
    code, out, err = lilliput("generate", "mine", "--prompt", "long " * 20, "--tokens", "4")
    assert code == 0
    assert err == "the prompt has 101 tokens and the model sees 32: it goes on from the last 16\n"
    assert out.startswith("long long")
    path = tmp_path / "p.txt"
    path.write_text("short\n" + "long " * 20 + "\n" + "longer " * 20)
    err = lilliput("generate", "mine", "--prompts", str(path), "--tokens", "2").err
    assert err == "2 of 3 prompts have up to 141 tokens and the model sees 32: it goes on from the last 16\n"


# ---- mistakes


def test_all_mistakes_at_once_by_the_names_of_their_flags() -> None:
    err = refused("--top-p", "2", "--beams", "few", "--samples", "0", "--engine", "steam", "--seed", "-1").splitlines()
    assert [line.split(":")[0] for line in err] == [
        "--samples is '0'",
        "--seed is '-1'",
        "--top-p is '2'",
        "--beams is 'few'",
        "--engine is 'steam'",
    ]
    assert err[2] == "--top-p is '2': it should be less than or equal to 1"


def test_flags_that_do_not_fit_each_other() -> None:
    assert refused("--n-best", "3") == "--n-best tells the texts of a beam search\n  try --beams 3\n"
    assert "--beams" in refused("--n-best", "3", "--beams", "2")
    both = refused("--beams", "2", "--samples", "3", "--alternatives", "2").splitlines()
    assert len(both) == 2
    assert both[0].endswith("--n-best 3 in place of --samples, or --beams none")
    groups = refused("--beams", "4", "--beam-groups", "2", "--sample-beams")
    assert groups.startswith("drawn beams have no groups") and "(--sample-beams)" in groups
    assert "--length-penalty is '11'" in refused("--beams", "4", "--length-penalty", "11")
    assert "--prompt is one prompt" in refused("--prompt", "a", "--prompts", "b.txt")


def test_settings_that_do_not_fit_each_other_are_told_as_flags() -> None:
    told = refused("--diversity", "0.3", "--min-tokens", "50", "--tokens", "9").splitlines()
    assert told == [
        "--diversity is for a beam search: set --beams, too",
        "--min-tokens 50 is more than --tokens 9",
    ]


def test_what_the_run_says_gives_way_to_what_is_said_now() -> None:
    run = GenerateSettings(top_k=5, min_tokens=20, length_penalty=2.0, beams=4, sample_beams=True)
    how, left_out = changed(run, {"temperature": "0", "tokens": "9", "beams": "none"})
    assert how == GenerateSettings(temperature=0.0, tokens=9)
    assert left_out[0] == "left out --top-k: at --temperature 0 nothing is drawn, so --top-k would do nothing"
    assert [sentence.split(":")[0] for sentence in left_out[1:]] == [
        "left out --length-penalty",
        "left out --sample-beams",
        "left out --min-tokens",
    ]
    with pytest.raises(UserErrors, match="--top-k would do nothing"):
        changed(run, {"temperature": "0", "top_k": "5"})


def test_beams_of_the_run_give_way_to_what_is_said_now() -> None:
    run = GenerateSettings(beams=4, length_penalty=2.0)
    how, left_out = changed(run, {"top_p": "0.9"})
    assert how == GenerateSettings(top_p=0.9)
    assert [sentence.split(":")[0] for sentence in left_out] == ["left out --beams", "left out --length-penalty"]
    assert "--top-p would do nothing" in left_out[0]
    for said in ({"top_p": "0.9", "beams": "3"}, {"beam_groups": "3"}, {"top_p": "0.9", "length_penalty": "0.5"}):
        with pytest.raises(UserErrors):
            changed(run, said)


def test_a_temperature_that_was_said_is_not_ignored() -> None:
    """Beams that are not drawn have none; 0 is none, too."""
    run = GenerateSettings(beams=4)
    how, left_out = changed(run, {"temperature": "1.5"})
    assert how == GenerateSettings(temperature=1.5)
    (told,) = left_out
    assert told == ("left out --beams: beams are not drawn without --sample-beams, so --temperature would do nothing")
    for said in ({"temperature": "0"}, {"temperature": "1.5", "sample_beams": True}, {"beams": "3"}):
        assert changed(run, said)[1] == []
    assert changed(GenerateSettings(), {"temperature": "0", "beams": "3"})[1] == []
    told = refused("--beams", "3", "--temperature", "0.5")
    assert told == "beams are not drawn without --sample-beams, so --temperature would do nothing\n"


@pytest.fixture(scope="module")
def run_with_beams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beams")
    run, _ = train_small(small_config(folder, generate__beams="3", generate__length_penalty="2"))
    return run.folder


@pytest.mark.parametrize(
    "flags", [["--samples", "2"], ["--alternatives", "2"], ["--top-p", "0.9"], ["--temperature", "1.5"]]
)
def test_a_run_that_writes_with_beams(run_with_beams: Path, flags: list[str]) -> None:
    write = ["generate", str(run_with_beams), "--tokens", "6", "--engine", "torch", "--json"]
    assert json.loads(lilliput(*write).out)["samples"][0]["rank"] == 1
    code, out, err = lilliput(*write, *flags)
    assert code == 0, err
    assert [line.split(":")[0] for line in err.splitlines()] == ["left out --beams", "left out --length-penalty"]
    assert flags[0] in err.splitlines()[0]
    assert out.count('"rank": null') == (2 if flags[0] == "--samples" else 1)
    plain = lilliput(*write, *flags, "--beams", "none", "--length-penalty", "1")
    assert json.loads(plain.out)["samples"] == json.loads(out)["samples"]
    assert lilliput(*write, *flags, "--beams", "2").code == 2, "both were said now"


@pytest.mark.parametrize("beams", ["none", "2"])
def test_what_cannot_be_written_is_told_before_anything_is(beams: str) -> None:
    told = refused("--prompt", "Once", "--tokens", "3", "--forced-words", "elephant", "--beams", beams)
    assert "  at  --forced-words\n" in told and "9 tokens" in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"Once\ncaf\xe9", ("prompts must be UTF-8: byte 0xe9", "line 2, byte 8")),
        (b"", ("there are no prompts",)),
        (b" \n\n", ("there are no prompts, only white space",)),
    ],
)
def test_a_file_that_holds_no_prompts(content: bytes, told: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(content)
    err = refused("--prompts", str(path))
    assert all(part in err for part in (*told, str(path))), err
    assert len(err.splitlines()) <= 3


def test_no_file_of_prompts(tmp_path: Path) -> None:
    assert "this is a folder" in refused("--prompts", str(tmp_path))
    assert "there is no such file of prompts" in refused("--prompts", str(tmp_path / "nothere.txt"))
    told = refused("--prompts", str(tmp_path / "nothere.txt"), "--top-p", "2").splitlines()
    assert told[0].startswith("--top-p is '2'") and told[1].startswith("there is no such file of prompts")


def test_nobody_types_prompts_for_a_command_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("--prompts", "-", "--top-p", "2").startswith("--top-p is '2'")


# ---- as a process


def test_nothing_is_imported_that_is_not_needed() -> None:
    code = (
        "import sys; from lilliput.cli import main; main(['generate', 'mine', '--tokens', '1', '--engine', 'torch'])\n"
        "heavy = {'matplotlib', 'transformers', 'pyarrow', 'numba', 'scipy', 'pandas', 'tyro', 'tensorboard', 'gensim'}\n"
        "print(*heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a POSIX system")
def test_stopped_while_it_writes() -> None:
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
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.decode() == "\nlilliput: stopped\n"
