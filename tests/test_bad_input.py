"""Errors that a user can make: exit code 2, at most three lines (or one line per error), no traceback, nothing changed.

Each case is a command in a folder that holds mytext.txt and the finished run runs/mine; `prepare` changes the folder first.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from helpers.small_runs import FLAGS, SETTINGS, copy_of_trained, lilliput
from lilliput.storage.checkpoints import FILES, MANIFEST


class Case(NamedTuple):
    name: str
    command: str  # split at spaces; FLAGS are added for SMALL
    code: str | tuple[str, ...]  # several where several errors are reported at once
    setting: str | None = None  # of the first error
    fact: str = ""  # a part of the first error or its place
    suggestion: str = ""  # a part of the fix: the nearest valid name, or a flag
    prepare: Callable[[], object] = lambda: None


def write(name: str, content: str | bytes) -> Callable[[], object]:
    def action() -> None:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return action


def recipe(content: str | bytes) -> Callable[[], object]:
    return write("r.toml", content)


def both(*actions: Callable[[], object]) -> Callable[[], object]:
    return lambda: [action() for action in actions]


STUDY = """title = "S"
recipe = "mytext.txt"
seeds = [1]
budget = { steps = 1 }
measure = ["training"]
[settings]
"""
MISTAKEN = STUDY + "model.dmi = 3\n"
BEST = "runs/mine/checkpoints/step-000008"

CASES = [
    # ---- texts
    Case("empty file", "train a.txt SMALL", "data.empty", fact="a.txt", prepare=write("a.txt", "")),
    Case("only white space", "train a.txt SMALL", "data.empty", prepare=write("a.txt", " \n\t\n")),
    Case(
        "only separators", "train a.txt SMALL", "data.empty", prepare=write("a.txt", "<|endoftext|>\n<|endoftext|>\n")
    ),
    Case("binary file", "train a.txt SMALL", "file.binary", fact="byte 4", prepare=write("a.txt", b"text\0\0")),
    Case(
        "not UTF-8",
        "train a.txt SMALL",
        "file.not-utf8",
        fact="line 2, byte 8",
        prepare=write("a.txt", b"one\ncaf \xe9 x"),
    ),
    Case("UTF-16", "train a.txt SMALL", "file.not-utf8", prepare=write("a.txt", "text".encode("utf-16"))),
    Case("one character", "train a.txt SMALL", "data.no-validation", prepare=write("a.txt", "x")),
    Case("another ending", "train a.pdf SMALL", "file.binary", fact="a.pdf", prepare=write("a.pdf", "%PDF-1.4")),
    Case("no such file", "train nothere.txt SMALL", "recipe.missing", fact="nothere.txt"),
    Case("a file nearly", "prepare mytext.tx", "recipe.missing", fact="mytext.tx", suggestion="mytext.txt"),
    Case("a recipe nearly", "train dmo SMALL", "recipe.missing", fact="dmo", suggestion="demo"),
    Case("folder without texts", "train empty SMALL", "file.format", prepare=lambda: os.mkdir("empty")),
    Case("folder of pictures", "train p SMALL", "file.format", fact=".png", prepare=write("p/a.png", b"\x89PNG")),
    Case(
        "validation source missing",
        "train mytext.txt SMALL --data.validation_source no.txt",
        "file.missing",
        setting="data.validation_source",
        fact="no.txt",
    ),
    # ---- .jsonl
    Case(
        "line is not JSON",
        "train a.jsonl SMALL",
        "file.syntax",
        fact="line 2",
        prepare=write("a.jsonl", '{"text": "a"}\n{"te'),
    ),
    Case("line is no object", "train a.jsonl SMALL", "file.syntax", fact="line 1", prepare=write("a.jsonl", "[1]\n")),
    Case(
        "no such field",
        "train a.jsonl SMALL",
        "data.column",
        setting="data.text_field",
        fact="story",
        suggestion="story",
        prepare=write("a.jsonl", '{"story": "a"}'),
    ),
    Case("field is a number", "train a.jsonl SMALL", "data.column", prepare=write("a.jsonl", '{"text": 1}')),
    # ---- settings
    Case(
        "unknown setting",
        "train mytext.txt SMALL --model.layer 3",
        "setting.unknown",
        setting="model.layer",
        suggestion="model.layers",
    ),
    Case("unknown flag", "train mytext.txt --overwrit", "flag.unknown", fact="--overwrit", suggestion="--overwrite"),
    Case("unknown command", "trian mytext.txt", "command.unknown", fact="trian", suggestion="lilliput train"),
    Case("far from any command", "xyzzy", "command.unknown", suggestion="train, generate"),
    Case("no target", "train", "flag.missing", fact="target", suggestion="lilliput train demo"),
    Case("two targets", "train mytext.txt other.txt", "flag.unknown", fact="other.txt"),
    Case(
        "unknown size",
        "train mytext.txt --size huge",
        "setting.choice",
        fact="huge",
        suggestion="nano, tiny, small, base",
    ),
    Case("flag without value", "train mytext.txt --model.dim", "flag.missing", setting="model.dim"),
    Case(
        "misspelt flag without value",
        "train mytext.txt --train.balance-label",
        "setting.unknown",
        setting="train.balance_label",
        suggestion="train.balance_labels",
    ),
    Case("size without value", "train mytext.txt --size", "flag.missing", fact="--size"),
    Case("dim and heads", "train mytext.txt --model.dim 30 --model.heads 4", "setting.conflict", setting="model.heads"),
    Case("odd head", "train mytext.txt --model.dim 6 --model.heads 2", "setting.conflict", setting="model.heads"),
    Case("kv heads", "train mytext.txt --model.kv_heads 3", "setting.conflict", setting="model.kv_heads"),
    Case("negative steps", "train mytext.txt --train.steps -5", "setting.value", setting="train.steps"),
    Case("zero batch", "train mytext.txt --train.batch 0", "setting.value", setting="train.batch"),
    Case("half a layer", "train mytext.txt --model.layers 2.5", "setting.value", setting="model.layers"),
    Case("lr nan", "train mytext.txt --optimizer.lr nan", "setting.value", setting="optimizer.lr"),
    Case("lr inf", "train mytext.txt --optimizer.lr inf", "setting.value", setting="optimizer.lr"),
    Case("lr of words", "train mytext.txt --optimizer.lr fast", "setting.value", setting="optimizer.lr"),
    Case("dropout one", "train mytext.txt --model.dropout 1.0", "setting.value", setting="model.dropout"),
    Case("unknown choice", "train mytext.txt --model.norm batch", "setting.choice", setting="model.norm"),
    Case("seed below zero", "train mytext.txt --seed -1", "setting.value", setting="seed"),
    Case("a group as a value", "train mytext.txt --model 3", "flag.unknown", fact="--model"),
    Case(
        "vocabulary of the tokenizer",
        "train mytext.txt --tokenizer.vocab_size 100",
        "setting.conflict",
        setting="tokenizer.vocab_size",
    ),
    Case("no budget", "train mytext.txt --train.minutes none", "setting.conflict"),
    Case("two budgets", "train mytext.txt --train.minutes 1 --train.steps 5", "setting.conflict"),
    Case("empty window", "train mytext.txt --model.window []", "setting.conflict", setting="model.window"),
    Case("no CUDA", "train mytext.txt SMALL --train.device cuda", "device.missing", setting="train.device"),
    Case(
        "classifier without labels",
        "train mytext.txt SMALL --model.task classifier --model.classes 3",
        "setting.conflict",
        setting="data.labelled",
    ),
    Case(
        "vocabulary too small",
        "train mytext.txt SMALL --tokenizer.kind bpe --model.vocab_size 257",
        "setting.conflict",
        setting="model.vocab_size",
    ),
    # ---- recipes
    Case("deep TOML", "train r.toml", "file.syntax", fact="r.toml", prepare=recipe("a = " + "[" * 9999)),
    Case("bad TOML", "train r.toml", "file.syntax", fact="r.toml", prepare=recipe('name = "a"\nlr = = 3\n')),
    Case("recipe not UTF-8", "train r.toml", "file.not-utf8", fact="byte 8", prepare=recipe(b'name = "\xff"')),
    Case("missing base", "train r.toml", "recipe.missing", fact="r.toml, line 1", prepare=recipe('base = "no.toml"')),
    Case("circular base", "train r.toml", "recipe.cycle", prepare=recipe('base = "r.toml"')),
    Case("base is a number", "train r.toml", "recipe.missing", fact="r.toml, line 1", prepare=recipe("base = 3")),
    Case(
        "unknown name in a recipe",
        "train r.toml",
        "setting.unknown",
        setting="model.heds",
        fact="r.toml, line 2",
        suggestion="model.heads",
        prepare=recipe("[model]\nheds = 3"),
    ),
    Case("group as a value in a recipe", "train r.toml", "setting.group", setting="model", prepare=recipe("model = 3")),
    Case(
        "wrong type in a recipe",
        "train r.toml",
        "setting.value",
        setting="model.layers",
        fact="r.toml, line 2",
        prepare=recipe('[model]\nlayers = "six"'),
    ),
    Case(
        "two budgets in a recipe",
        "train r.toml",
        "setting.conflict",
        prepare=recipe("[train]\nsteps = 3\ntokens = 5\n"),
    ),
    Case(
        "source of a recipe missing",
        "train r.toml",
        "file.missing",
        setting="data.source",
        fact="gone.txt",
        prepare=recipe('[data]\nsource = "gone.txt"'),
    ),
    Case(
        "data folder not named",
        "train r.toml",
        "data.source",
        setting="data.source",
        fact="LILLIPUT_DATA",
        prepare=recipe('[data]\nsource = "$LILLIPUT_DATA/a.txt"'),
    ),
    # ---- tokenizers
    Case(
        "no such tokenizer",
        "train mytext.txt SMALL --tokenizer.path t.json",
        "file.missing",
        setting="tokenizer.path",
        fact="t.json",
    ),
    Case(
        "tokenizer is no JSON",
        "train mytext.txt SMALL --tokenizer.path t.json",
        "file.syntax",
        fact="t.json",
        prepare=write("t.json", "{"),
    ),
    Case(
        "tokenizer is other JSON",
        "train mytext.txt SMALL --tokenizer.path t.json",
        "tokenizer.invalid",
        fact="t.json",
        prepare=write("t.json", "{}"),
    ),
    Case(
        "dry run of no tokenizer",
        "train mytext.txt --dry-run --tokenizer.path t.json",
        "file.missing",
        setting="tokenizer.path",
        fact="t.json",
    ),
    # ---- files and folders
    Case("name with a slash", "train mytext.txt SMALL --name ../up", "run.name", setting="name", fact="../up"),
    Case("name of dots", "train mytext.txt SMALL --name ..", "run.name", setting="name"),
    Case("name of a path", "train mytext.txt SMALL --name /tmp/x", "run.name", setting="name"),
    Case("name beyond reason", "train mytext.txt SMALL --name " + "x" * 300, "run.name", setting="name"),
    Case(
        "runs folder is a file", "train mytext.txt SMALL --log.folder mytext.txt", "file.not-written", fact="mytext.txt"
    ),
    Case(
        "cache folder is a file",
        "train mytext.txt SMALL --data.cache mytext.txt --name n",
        "file.not-written",
        fact="mytext.txt",
    ),
    Case(
        "folder that is no run",
        "train mytext.txt SMALL --name thesis",
        "run.name",
        setting="name",
        fact="runs/thesis",
        prepare=write("runs/thesis/a.tex", "x"),
    ),
    Case(
        "run exists",
        "train mytext.txt SMALL --name mine",
        "run.exists",
        fact="runs/mine",
        suggestion="--resume to continue it with its own settings, --name NEW to keep both, or --overwrite",
    ),
    # ---- resume
    Case("resume nothing", "train mytext.txt --resume", "run.missing", fact="runs/mytext"),
    Case("resume no name", "train nobody --resume", "recipe.missing", fact="nobody"),
    Case(
        "resume with other settings", "train runs/mine --resume --optimizer.lr 1", "setting.changed", fact="runs/mine"
    ),
    Case("smaller budget", "train runs/mine --resume --train.steps 2", "budget.smaller", setting="train.steps"),
    Case("used budget", "train runs/mine --resume --train.tokens 9", "budget.smaller", setting="train.tokens"),
    Case(
        "resume by command with other settings",
        "train mytext.txt --name mine --resume --model.dim 64",
        "setting.changed",
        setting="model.dim",
    ),
    Case("resume and overwrite", "train runs/mine --resume --overwrite", "flag.conflict"),
    Case("resume and from", "train runs/mine --resume --from mine", "flag.conflict"),
    Case(
        "resume without its data",
        "train runs/mine --resume",
        "file.missing",
        setting="data.source",
        fact="mytext.txt",
        prepare=lambda: remove_the_data(),
    ),
    Case(
        "resume settings damaged",
        "train runs/mine --resume",
        "file.damaged",
        fact="config.json",
        prepare=write("runs/mine/config.json", "{"),
    ),
    Case(
        "resume settings of another version",
        "train runs/mine --resume",
        "setting.unknown",
        setting="model.colour",
        prepare=lambda: edit_config("colour"),
    ),
    Case("from nothing", "train mytext.txt --from nobody", "run.missing", fact="nobody"),
    Case("from with a model", "train mytext.txt --from mine --model.dim 8", "setting.conflict", setting="model.dim"),
    Case("from with a size", "train mytext.txt --from mine --size nano", "flag.conflict", fact="--size"),
    Case(
        "from a damaged one",
        "train mytext.txt --from mine",
        "checkpoint.damaged",
        fact="model.safetensors",
        prepare=lambda: flip(f"{BEST}/model.safetensors"),
    ),
    # ---- evaluate
    Case("evaluate no such run", "evaluate mnie", "run.missing", fact="mnie", suggestion="mine"),
    Case(
        "evaluate on nothing",
        "evaluate mine --on validaton",
        "evaluation.set",
        fact="validaton",
        suggestion="validation",
    ),
    Case("evaluate on no tests", "evaluate mine --on tests", "evaluation.set"),
    Case("evaluate an empty file", "evaluate mine --on a.txt", "data.empty", fact="a.txt", prepare=write("a.txt", "")),
    Case(
        "evaluate a picture",
        "evaluate mine --on a.png",
        "file.binary",
        fact="a.png",
        prepare=write("a.png", b"\x89PNG\0"),
    ),
    Case("stride beyond the context", "evaluate mine --stride 33", "setting.value", fact="33", suggestion="16"),
    Case("stride 0", "evaluate mine --stride 0", "flag.value", fact="--stride"),
    Case("stride of words", "evaluate mine --stride far", "flag.value", fact="--stride"),
    Case("evaluate by colour", "evaluate mine --by colour", "flag.value", fact="colour"),
    Case("evaluate into no folder", "evaluate mine --csv no/a.csv", "file.not-written", fact="no/a.csv"),
    Case("beams of what", "evaluate mine --beams 5", "flag.conflict", fact="--beams", suggestion="--overlap"),
    Case("overlap of too much", "evaluate mine --overlap --tokens 9999", "evaluation.too-small", fact="10,004"),
    Case(
        "several mistakes of evaluate",
        "evaluate mine --on b.txt --stride 0 --overlap --prompts 0",
        ("flag.value", "flag.value", "evaluation.set"),
    ),
    # ---- generate
    Case("no such run", "generate mnie", "run.missing", fact="mnie", suggestion="mine"),
    Case("run is a file", "generate mytext.txt", "run.missing", fact="mytext.txt"),
    Case("run is any folder", "generate runs", "run.missing", fact="runs"),
    Case(
        "run without checkpoint",
        "generate mine",
        "run.no-checkpoint",
        fact="mine",
        prepare=lambda: shutil.rmtree("runs/mine/checkpoints"),
    ),
    Case("samples 0", "generate mine --samples 0", "flag.value", fact="--samples"),
    Case("tokens below zero", "generate mine --tokens -3", "setting.value", setting="generate.tokens", fact="--tokens"),
    Case(
        "temperature -1",
        "generate mine --temperature -1",
        "setting.value",
        setting="generate.temperature",
        fact="--temperature",
    ),
    Case("temperature nan", "generate mine --temperature nan", "setting.value", setting="generate.temperature"),
    Case("temperature of words", "generate mine --temperature hot", "setting.value", setting="generate.temperature"),
    Case("top-k 0", "generate mine --top-k 0", "setting.value", setting="generate.top_k", fact="--top-k"),
    Case("prompt without quotes", "generate mine --prompt Once upon", "flag.conflict", fact="upon", suggestion="quote"),
    Case("generate without CUDA", "generate mine --device cuda", "device.missing"),
    Case("generate on a toaster", "generate mine --device toaster", "flag.value", fact="toaster"),
    Case("generate takes no settings", "generate mine --model.dim 3", "flag.unknown", fact="--model.dim"),
    *(
        Case(
            f"one bit of {file}",
            "generate mine",
            "checkpoint.damaged",
            fact=file,
            prepare=lambda file=file: flip(f"{BEST}/{file}"),
        )
        for file in (*FILES, MANIFEST)
    ),
    *(
        Case(
            f"without {file}",
            "generate mine",
            "checkpoint.damaged",
            fact=file,
            prepare=lambda file=file: os.unlink(f"{BEST}/{file}"),
        )
        for file in (*FILES, MANIFEST)
    ),
    # ---- info
    Case("info of nothing", "info nobody", "run.missing", fact="nobody"),
    Case("info of three", "info mine mine nobody", "run.missing", fact="nobody"),
    Case(
        "info with a damaged log",
        "info mine",
        "file.damaged",
        fact="line 1",
        prepare=write("runs/mine/metrics.jsonl", "{]\n{}\n"),
    ),
    Case(
        "info with damaged settings",
        "info mine",
        "file.damaged",
        fact="config.json",
        prepare=write("runs/mine/config.json", "[]"),
    ),
    # ---- attention
    Case("attention of nothing", "attention mine", "flag.missing"),
    Case("attention of nobody", "attention mnie text", "run.missing", fact="mnie", suggestion="mine"),
    Case("attention of no such layer", "attention mine text --layers 0,2", "attention.selection", fact="--layers"),
    Case("attention of no such head", "attention mine text --heads 0-9", "attention.selection", fact="--heads"),
    Case("attention of layers in words", "attention mine text --layers first", "flag.value", fact="--layers"),
    Case(
        "attention backwards", "attention mine text --heads 1-0", "flag.value", fact="--heads", suggestion="--heads 0-1"
    ),
    Case(
        "attention by no score",
        "attention mine text --sort entropie",
        "flag.value",
        fact="--sort",
        suggestion="entropy",
    ),
    Case("attention of no tokens", "attention mine text --generate 0", "flag.value", fact="--generate"),
    Case("attention written of nothing", "attention mine --on train --generate 4", "flag.conflict", fact="--generate"),
    Case("attention padded and written", "attention mine text --pad --generate 4", "flag.conflict", fact="--pad"),
    Case(
        "attention warm and not written", "attention mine text --temperature 1", "flag.conflict", fact="--temperature"
    ),
    Case("attention of documents of no set", "attention mine text --documents 3", "flag.conflict", fact="--documents"),
    Case("attention drawn by nothing", "attention mine text --seed 3", "flag.conflict", fact="--seed"),
    Case("attention of padding alone", "attention mine --on train --pad", "flag.conflict", fact="--pad"),
    Case("attention of no pictures", "attention mine text --pictures none --svg", "flag.conflict", fact="--svg"),
    Case("attention on no such set", "attention mine --on validatoin", "evaluation.set", fact="validatoin"),
    Case("attention into a file", "attention mine text --out mytext.txt", "file.not-written", fact="mytext.txt"),
    Case("attention of two texts", "attention mine two words", "flag.unknown", fact="words"),
    # ---- studies
    Case("a study nearly", "study windwo", "study.missing", fact="windwo", suggestion="window"),
    Case("no study", "study mytext.txt", "study.file", fact="mytext.txt"),
    Case(
        "seeds of no study",
        "study --seeds 1",
        "flag.missing",
        fact="--seeds",
        suggestion="lilliput study window --seeds",
    ),
    Case("seeds with a letter", "study window --seeds 1,x", "flag.value", fact="--seeds"),
    Case(
        "a study without a quick form",
        "study s.toml --quick",
        "study.file",
        fact="s.toml",
        prepare=write("s.toml", STUDY),
    ),
    Case(
        "a study's settings",
        "study s.toml",
        "setting.unknown",
        setting="model.dmi",
        fact="s.toml, line 7",
        suggestion="model.dim",
        prepare=write("s.toml", MISTAKEN),
    ),
    Case(
        "a study in a run's place", "study mine.toml", "run.exists", fact="runs/mine", prepare=write("mine.toml", STUDY)
    ),
    Case(
        "a study in a file",
        "study s.toml --folder mytext.txt",
        "file.not-written",
        fact="mytext.txt",
        prepare=write("s.toml", STUDY),
    ),
    Case("not TOML", "study s.toml", "file.syntax", fact="s.toml", prepare=write("s.toml", "title = ")),
    # ---- reports
    Case("report of nothing", "report nobody", "run.missing", fact="nobody"),
    Case("report without a target", "report", "flag.missing", fact="RUN|STUDY"),
    Case("report of any folder", "report runs", "run.missing", fact="runs"),
    Case(
        "report of a study that nobody ran",
        "report window",
        "study.incomplete",
        fact="runs/window",
        suggestion="lilliput study window",
    ),
    Case("report as PDF", "report mine --out mine.pdf", "file.format", fact="mine.pdf", suggestion="mine.html"),
    Case("report into a folder", "report mine --out runs", "file.format", fact="runs", suggestion="runs.html"),
    Case("report with a wrong flag", "report mine --output x", "flag.unknown", fact="--output", suggestion="--out"),
    Case("report where a file is", "report mine --out mytext.txt/r.html", "file.not-written", fact="mytext.txt"),
    Case(
        "report with a damaged log",
        "report mine",
        "file.damaged",
        fact="line 1",
        prepare=write("runs/mine/metrics.jsonl", "{]\n{}\n"),
    ),
    Case(
        "report of a damaged study",
        "report mine",
        "file.damaged",
        fact="study.json",
        prepare=write("runs/mine/study.json", "{"),
    ),
    Case("prepare nothing", "prepare nothere", "recipe.missing", fact="nothere"),
    Case(
        "prepare with a wrong setting",
        "prepare mytext.txt --data.separator comma",
        "setting.choice",
        setting="data.separator",
    ),
]


def flip(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)


def edit_config(name: str) -> None:
    path = Path("runs/mine/config.json")
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"model": config["model"] | {name: "red"}}))


def remove_the_data() -> None:
    path = Path("runs/mine/config.json")
    path.write_text(
        path.read_text().replace(json.loads(path.read_text())["data"]["source"], str(Path("mytext.txt").absolute()))
    )
    os.unlink("mytext.txt")


def test_the_number_of_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 100


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_an_error_is_reported_and_changes_nothing(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "CUDA" in case.name and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    monkeypatch.chdir(copy_of_trained(tmp_path))
    monkeypatch.delenv("LILLIPUT_DATA", raising=False)
    case.prepare()
    before = sorted(path for path in Path().rglob("*") if "prepared" not in path.parts)
    outside = sorted(tmp_path.iterdir())
    words = [word for part in case.command.split() for word in (FLAGS if part == "SMALL" else [part])]
    result = lilliput(*words)
    code, out, err = result
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= max(3, len(result.errors)), err
    assert "Traceback" not in err
    codes = (case.code,) if isinstance(case.code, str) else case.code
    assert tuple(error.code for error in result.errors) == codes, err
    first = result.errors[0]
    assert case.setting is None or first.setting == case.setting, err
    assert case.fact in f"{first.what} {first.where}", err
    assert case.suggestion in first.fix, err
    after = sorted(path for path in Path().rglob("*") if "prepared" not in path.parts and path.name != ".lock")
    assert after == [path for path in before if path.name != ".lock"], "nothing is made or removed"
    assert sorted(tmp_path.iterdir()) == outside


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    os.chmod("runs", 0o500)
    result = lilliput("train", "mytext.txt", *FLAGS, "--name", "new")
    os.chmod("runs", 0o700)
    assert result.code == 2
    assert [error.code for error in result.errors] == ["file.not-written"]


def test_several_errors_are_reported_at_once_a_line_each() -> None:
    result = lilliput(
        "train", "storybook", "--model.dim", "0", "--train.batch", "x", "--modle.heads", "3", "--size", "nano"
    )
    assert result.code == 2
    assert len(result.err.splitlines()) == 3
    assert {(error.code, error.setting) for error in result.errors} == {
        ("setting.value", "model.dim"),
        ("setting.value", "train.batch"),
        ("setting.unknown", "modle.heads"),
    }


# ---- unusual input that is valid


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shorter than the context", "A bee."),
        ("one giant line", "word " * 40_000),
        ("one giant word", "x" * 100_000),
        ("two characters", "ab"),
        ("emoji only", "🐝🌻" * 50),
        ("Windows line ends", "One.\r\nTwo.\r\n" * 50),
        ("byte order mark", "\ufeffOne. Two. " * 3),
        ("markup", "[bold]x[/] <html> \\n " * 20),
    ],
)
def test_unusual_texts_are_accepted(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_bytes(text.encode())
    flags = dict(SETTINGS) | {"train.steps": "2", "tokenizer.kind": "bpe", "tokenizer.vocab_size": "300"}
    code, out, err = lilliput("train", "a.txt", *(word for pair in flags.items() for word in (f"--{pair[0]}", pair[1])))
    assert code == 0, err
    assert "bits per byte" in out
    assert lilliput("generate", "a", "--tokens", "5").code == 0


@pytest.mark.parametrize(
    "name", ["my file.txt", "[red].txt", "ü.txt", "-x.txt", "a.b.c.txt", "...txt", "x" * 200 + ".txt"]
)
def test_unusual_file_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("A bee sat on a pea. " * 30)
    result = lilliput("train", f"./{name}", *FLAGS)
    if len(name) > 200:
        assert result.code == 2
        assert [(error.code, error.setting) for error in result.errors] == [("run.name", "name")]
    else:
        assert result.code == 0, result.err
        assert len(os.listdir("runs")) == 1
