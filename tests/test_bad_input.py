"""What goes wrong at the user's desk: a sentence, where, and what to do; exit code 2, at most three lines, no traceback.

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
    told: str | tuple[str, ...]  # what stderr must hold
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
    Case("empty file", "train a.txt SMALL", ("the source is empty", "a.txt"), write("a.txt", "")),
    Case("only white space", "train a.txt SMALL", "holds no text, only white space", write("a.txt", " \n\t\n")),
    Case("only separators", "train a.txt SMALL", "holds no text", write("a.txt", "<|endoftext|>\n<|endoftext|>\n")),
    Case("binary file", "train a.txt SMALL", ("is binary, not text", "byte 4"), write("a.txt", b"\x7fELF\0\0")),
    Case(
        "not UTF-8", "train a.txt SMALL", ("not UTF-8: byte 0xe9", "line 2, byte 8"), write("a.txt", b"one\ncaf \xe9 x")
    ),
    Case("UTF-16", "train a.txt SMALL", "the file is UTF-16", write("a.txt", "text".encode("utf-16"))),
    Case("one character", "train a.txt SMALL", "nothing is left for validation", write("a.txt", "x")),
    Case("another ending", "train a.pdf SMALL", ".pdf files are not understood", write("a.pdf", "text")),
    Case("no such file", "train nothere.txt SMALL", "there is no recipe, file or folder 'nothere.txt'"),
    Case("a recipe nearly", "train dmo SMALL", ("no recipe, file or folder 'dmo'", "try 'demo'")),
    Case("folder without texts", "train empty SMALL", "the folder holds no", lambda: os.mkdir("empty")),
    Case("folder of pictures", "train p SMALL", "only .png", write("p/a.png", b"\x89PNG")),
    Case(
        "validation source missing", "train mytext.txt SMALL --data.validation_source no.txt", "no such file or folder"
    ),
    # ---- .jsonl
    Case(
        "line is not JSON",
        "train a.jsonl SMALL",
        ("the line is not JSON", "line 2"),
        write("a.jsonl", '{"text": "a"}\n{"te'),
    ),
    Case("line is no object", "train a.jsonl SMALL", "no JSON object but list", write("a.jsonl", "[1]\n")),
    Case(
        "no such field",
        "train a.jsonl SMALL",
        ("no field 'text', only story", "text-field story"),
        write("a.jsonl", '{"story": "a"}'),
    ),
    Case(
        "field is a number", "train a.jsonl SMALL", "field 'text' is no string but int", write("a.jsonl", '{"text": 1}')
    ),
    # ---- settings
    Case(
        "unknown setting", "train mytext.txt SMALL --model.layer 3", ("there is no setting model.layer", "model.layers")
    ),
    Case("unknown flag", "train mytext.txt --overwrit", ("there is no flag --overwrit", "--overwrite")),
    Case("unknown verb", "trian mytext.txt", ("there is no verb 'trian'", "lilliput train")),
    Case("far from any verb", "xyzzy", "one of train, generate"),
    Case("no target", "train", ("required: target", "lilliput train --help")),
    Case("two targets", "train mytext.txt other.txt", "one argument too many: 'other.txt'"),
    Case("unknown size", "train mytext.txt --size huge", ("there is no size 'huge'", "nano, tiny, small, base")),
    Case("flag without value", "train mytext.txt --model.dim", "--model.dim needs a value"),
    Case(
        "misspelt flag without value",
        "train mytext.txt --train.balance-label",
        ("there is no setting train.balance_label\n", "try train.balance_labels"),
    ),
    Case("size without value", "train mytext.txt --size", ("expected one argument", "lilliput train --help")),
    Case(
        "dim and heads",
        "train mytext.txt --model.dim 30 --model.heads 4",
        "model.dim 30 is not divisible by model.heads 4",
    ),
    Case("odd head", "train mytext.txt --model.dim 6 --model.heads 2", "rotary positions need an even dim per head"),
    Case("kv heads", "train mytext.txt --model.kv_heads 3", "model.heads 4 is not divisible by model.kv_heads 3"),
    Case("negative steps", "train mytext.txt --train.steps -5", "train.steps is"),
    Case("zero batch", "train mytext.txt --train.batch 0", "train.batch is"),
    Case("half a layer", "train mytext.txt --model.layers 2.5", "model.layers is"),
    Case("lr nan", "train mytext.txt --optimizer.lr nan", "optimizer.lr is"),
    Case("lr inf", "train mytext.txt --optimizer.lr inf", "optimizer.lr is"),
    Case("lr of words", "train mytext.txt --optimizer.lr fast", "optimizer.lr is"),
    Case("dropout one", "train mytext.txt --model.dropout 1.0", "model.dropout is"),
    Case("unknown choice", "train mytext.txt --model.norm batch", ("model.norm is 'batch'", "'layer' or 'rms'")),
    Case("seed below zero", "train mytext.txt --seed -1", "seed is"),
    Case("a group as a value", "train mytext.txt --model 3", "there is no flag --model"),
    Case("vocabulary of the tokenizer", "train mytext.txt --tokenizer.vocab_size 100", "tokenizer.vocab_size is"),
    Case("no budget", "train mytext.txt --train.minutes none", "one budget is needed, and only one"),
    Case("two budgets", "train mytext.txt --train.minutes 1 --train.steps 5", "one budget is needed, and only one"),
    Case("empty window", "train mytext.txt --model.window []", "model.window"),
    Case("no CUDA", "train mytext.txt SMALL --train.device cuda", "there is no cuda device that torch can use here"),
    Case(
        "classifier without labels",
        "train mytext.txt SMALL --model.task classifier --model.classes 3",
        "a classifier needs labelled documents",
    ),
    Case(
        "vocabulary too small",
        "train mytext.txt SMALL --tokenizer.kind bpe --model.vocab_size 257",
        "the tokenizer has",
    ),
    # ---- recipes
    Case("deep TOML", "train r.toml", ("not valid TOML: nested deeper", "r.toml"), recipe("a = " + "[" * 9999)),
    Case("bad TOML", "train r.toml", ("not valid TOML", "line 2", "r.toml"), recipe('name = "a"\nlr = = 3\n')),
    Case("recipe not UTF-8", "train r.toml", ("a recipe must be UTF-8", "byte 8"), recipe(b'name = "\xff"')),
    Case(
        "missing base",
        "train r.toml",
        ("the base recipe 'no.toml' does not exist", "r.toml, line 1"),
        recipe('base = "no.toml"'),
    ),
    Case("circular base", "train r.toml", "based on each other in a circle", recipe('base = "r.toml"')),
    Case("base is a number", "train r.toml", "the base recipe 3 does not exist", recipe("base = 3")),
    Case(
        "unknown name in a recipe",
        "train r.toml",
        ("there is no setting model.heds", "r.toml, line 2", "model.heads"),
        recipe("[model]\nheds = 3"),
    ),
    Case("group as a value in a recipe", "train r.toml", "model is a group of settings", recipe("model = 3")),
    Case(
        "wrong type in a recipe",
        "train r.toml",
        ("model.layers is 'six'", "r.toml, line 2"),
        recipe('[model]\nlayers = "six"'),
    ),
    Case("two budgets in a recipe", "train r.toml", "one budget is needed", recipe("[train]\nsteps = 3\ntokens = 5\n")),
    Case(
        "source of a recipe missing",
        "train r.toml",
        ("no such file or folder", "gone.txt"),
        recipe('[data]\nsource = "gone.txt"'),
    ),
    Case("data folder not named", "train r.toml", "LILLIPUT_DATA", recipe('[data]\nsource = "$LILLIPUT_DATA/a.txt"')),
    # ---- tokenizers
    Case("no such tokenizer", "train mytext.txt SMALL --tokenizer.path t.json", "no such tokenizer"),
    Case(
        "tokenizer is no JSON",
        "train mytext.txt SMALL --tokenizer.path t.json",
        "the tokenizer is not JSON",
        write("t.json", "{"),
    ),
    Case(
        "tokenizer is other JSON",
        "train mytext.txt SMALL --tokenizer.path t.json",
        "the tokenizer cannot be used",
        write("t.json", "{}"),
    ),
    Case("dry run of no tokenizer", "train mytext.txt --dry-run --tokenizer.path t.json", "no such tokenizer"),
    # ---- places
    Case("name with a slash", "train mytext.txt SMALL --name ../up", "'../up' cannot be the name of a run"),
    Case("name of dots", "train mytext.txt SMALL --name ..", "'..' cannot be the name of a run"),
    Case("name of a path", "train mytext.txt SMALL --name /tmp/x", "cannot be the name of a run"),
    Case("name beyond reason", "train mytext.txt SMALL --name " + "x" * 300, "cannot be the name of a run"),
    Case(
        "runs folder is a file", "train mytext.txt SMALL --log.folder mytext.txt", "mytext.txt is a file, not a folder"
    ),
    Case(
        "cache folder is a file",
        "train mytext.txt SMALL --data.cache mytext.txt --name n",
        "cannot write prepared data",
    ),
    Case(
        "folder that is no run",
        "train mytext.txt SMALL --name thesis",
        "exists and is not a run",
        write("runs/thesis/a.tex", "x"),
    ),
    Case(
        "run exists",
        "train mytext.txt SMALL --name mine",
        ("run mine exists already", "--resume, --name NEW or --overwrite"),
    ),
    # ---- going on
    Case("resume nothing", "train mytext.txt --resume", ("there is no run runs/mytext to resume", "without --resume")),
    Case("resume no name", "train nobody --resume", "there is no recipe, file or folder 'nobody'"),
    Case("resume with other settings", "train runs/mine --resume --optimizer.lr 1", "a resumed run keeps its settings"),
    Case(
        "resume by command with other settings",
        "train mytext.txt --name mine --resume --model.dim 64",
        "model.dim was 16 when run mine began",
    ),
    Case("resume and overwrite", "train runs/mine --resume --overwrite", "--resume goes on with a run"),
    Case("resume and from", "train runs/mine --resume --from mine", "--resume goes on with a run"),
    Case(
        "resume without its data",
        "train runs/mine --resume",
        ("no such file or folder", "mytext.txt"),
        lambda: forget_the_data(),
    ),
    Case(
        "resume settings damaged",
        "train runs/mine --resume",
        "config.json of run mine is damaged",
        write("runs/mine/config.json", "{"),
    ),
    Case(
        "resume settings of another version",
        "train runs/mine --resume",
        "there is no setting model.colour",
        lambda: edit_config("colour"),
    ),
    Case("from nothing", "train mytext.txt --from nobody", "there is no run or checkpoint 'nobody'"),
    Case(
        "from with a model",
        "train mytext.txt --from mine --model.dim 8",
        "--model.dim cannot change what --from brings",
    ),
    Case("from with a size", "train mytext.txt --from mine --size nano", "--size cannot change what --from brings"),
    Case(
        "from a damaged one",
        "train mytext.txt --from mine",
        "is damaged: model.safetensors",
        lambda: flip(f"{BEST}/model.safetensors"),
    ),
    # ---- judging
    Case("evaluate no such run", "evaluate mnie", ("there is no run or checkpoint 'mnie'", "try mine")),
    Case("evaluate on nothing", "evaluate mine --on validaton", ("'validaton' is neither a set of", "try validation")),
    Case("evaluate on no tests", "evaluate mine --on tests", "the run has no test sets"),
    Case("evaluate an empty file", "evaluate mine --on a.txt", "the source is empty", write("a.txt", "")),
    Case("evaluate a picture", "evaluate mine --on a.png", ".png files are not understood", write("a.png", b"\x89PNG")),
    Case("stride beyond the context", "evaluate mine --stride 33", ("--stride 33 does not fit", "try --stride 16")),
    Case("stride 0", "evaluate mine --stride 0", "--stride is '0': it should be greater than or equal to 1"),
    Case("stride of words", "evaluate mine --stride far", "--stride is 'far': it should be a whole number"),
    Case("evaluate by colour", "evaluate mine --by colour", "invalid choice: 'colour'"),
    Case(
        "evaluate into no folder", "evaluate mine --csv no/a.csv", "--csv no/a.csv is in a folder that does not exist"
    ),
    Case("beams of what", "evaluate mine --beams 5", ("--beams is for --overlap", "try --overlap, too")),
    Case("overlap of too much", "evaluate mine --overlap --tokens 9999", "no document has 10,004 tokens"),
    Case(
        "several mistakes of evaluate",
        "evaluate mine --on b.txt --stride 0 --overlap --prompts 0",
        ("'b.txt' is neither", "--stride is '0'", "--prompts is '0'"),
    ),
    # ---- writing
    Case("no such run", "generate mnie", ("there is no run or checkpoint 'mnie'", "try mine")),
    Case("run is a file", "generate mytext.txt", "is a file, not the folder of a run"),
    Case("run is any folder", "generate runs", "runs is neither a run nor a checkpoint"),
    Case(
        "run without checkpoint",
        "generate mine",
        "run mine has no checkpoint yet",
        lambda: shutil.rmtree("runs/mine/checkpoints"),
    ),
    Case("samples 0", "generate mine --samples 0", "--samples is '0': it should be greater than or equal to 1"),
    Case("tokens below zero", "generate mine --tokens -3", "--tokens is '-3': it should be greater than or equal to 1"),
    Case(
        "temperature -1",
        "generate mine --temperature -1",
        "--temperature is '-1': it should be greater than or equal to 0",
    ),
    Case("temperature nan", "generate mine --temperature nan", "--temperature is 'nan': it should be a finite number"),
    Case("temperature of words", "generate mine --temperature hot", "--temperature is 'hot': it should be a number"),
    Case("top-k 0", "generate mine --top-k 0", "--top-k is '0': it should be greater than or equal to 1"),
    Case(
        "prompt without quotes",
        "generate mine --prompt Once upon",
        ("one argument too many: 'upon'", "quote text that has spaces"),
    ),
    Case("generate without CUDA", "generate mine --device cuda", "there is no cuda device"),
    Case("generate on a toaster", "generate mine --device toaster", "invalid choice: 'toaster'"),
    Case("generate takes no settings", "generate mine --model.dim 3", "there is no flag --model.dim"),
    *(
        Case(f"one bit of {file}", "generate mine", f"is damaged: {file}", lambda file=file: flip(f"{BEST}/{file}"))
        for file in (*FILES, MANIFEST)
    ),
    *(
        Case(
            f"without {file}",
            "generate mine",
            f"is damaged: {file} is missing",
            lambda file=file: os.unlink(f"{BEST}/{file}"),
        )
        for file in (*FILES, MANIFEST)
    ),
    # ---- looking
    Case("info of nothing", "info nobody", "there is no run or checkpoint 'nobody'"),
    Case("info of three", "info mine mine mine", "info compares two runs, not more"),
    Case(
        "info with a damaged log",
        "info mine",
        ("the log of run mine is damaged", "line 1"),
        write("runs/mine/metrics.jsonl", "{]\n{}\n"),
    ),
    Case(
        "info with damaged settings",
        "info mine",
        "config.json of run mine is damaged",
        write("runs/mine/config.json", "[]"),
    ),
    # ---- attention
    Case("attention of nothing", "attention mine", ("there is nothing to look at", "--on")),
    Case("attention of nobody", "attention mnie text", ("there is no run or checkpoint 'mnie'", "try mine")),
    Case("attention of no such layer", "attention mine text --layers 0,2", "model's are numbered from 0 to 1"),
    Case("attention of no such head", "attention mine text --heads 0-9", "model's are numbered from 0 to 1"),
    Case("attention of layers in words", "attention mine text --layers first", "'first': it should be numbers"),
    Case("attention backwards", "attention mine text --heads 1-0", ("1-0 goes backwards", "--heads 0-1")),
    Case("attention by no score", "attention mine text --sort entropie", ("no score 'entropie'", "try entropy")),
    Case("attention of no tokens", "attention mine text --generate 0", "--generate is '0': it should be greater than"),
    Case("attention written of nothing", "attention mine --on train --generate 4", "--generate goes on from a text"),
    Case("attention padded and written", "attention mine text --pad --generate 4", "has no padding"),
    Case("attention warm and not written", "attention mine text --temperature 1", "--temperature is for --generate"),
    Case("attention of documents of no set", "attention mine text --documents 3", "--documents is for --on"),
    Case("attention drawn by nothing", "attention mine text --seed 3", "--seed is for --generate or --on"),
    Case("attention of padding alone", "attention mine --on train --pad", "--pad is for a text"),
    Case("attention of no pictures", "attention mine text --pictures none --svg", "--svg is for pictures of a text"),
    Case("attention on no such set", "attention mine --on validatoin", "validatoin"),
    Case("attention into a file", "attention mine text --out mytext.txt", "mytext.txt is a file, not a folder"),
    Case("attention of two texts", "attention mine two words", ("one argument too many: 'words'", "quote text")),
    # ---- studies
    Case("a study nearly", "study windwo", ("there is no study 'windwo'", "try window")),
    Case("no study", "study mytext.txt", ("mytext.txt is no study", "a .toml file")),
    Case("seeds of no study", "study --seeds 1", ("--seeds of which study?", "lilliput study window --seeds")),
    Case("seeds with a letter", "study window --seeds 1,x", ("--seeds is '1,x'", "--seeds 1,2,3")),
    Case("a study without a quick form", "study s.toml --quick", "study s has no quick form", write("s.toml", STUDY)),
    Case(
        "a study's settings",
        "study s.toml",
        ("no setting model.dmi", "s.toml, line 7", "model.dim"),
        write("s.toml", MISTAKEN),
    ),
    Case("a study in a run's place", "study mine.toml", "is a run, and the study would", write("mine.toml", STUDY)),
    Case("a study in a file", "study s.toml --folder mytext.txt", "is a file", write("s.toml", STUDY)),
    Case("not TOML", "study s.toml", ("not valid TOML", "s.toml"), write("s.toml", "title = ")),
    # ---- reports
    Case(
        "report of nothing",
        "report nobody",
        ("there is no run or checkpoint 'nobody'", "neither a path nor a name in runs"),
    ),
    Case("report without a target", "report", ("required: RUN|STUDY", "lilliput report --help")),
    Case("report of any folder", "report runs", "runs is neither a run nor a checkpoint"),
    Case(
        "report of a study that nobody ran", "report window", ("study window was not run yet", "lilliput study window")
    ),
    Case("report as PDF", "report mine --out mine.pdf", ("a report is an .html file", "--out mine.html")),
    Case("report into a folder", "report mine --out runs", ("a report is an .html file", "--out runs.html")),
    Case("report with a wrong flag", "report mine --output x", ("there is no flag --output", "--out")),
    Case("report where a file is", "report mine --out mytext.txt/r.html", "mytext.txt is a file, not a folder"),
    Case(
        "report with a damaged log",
        "report mine",
        ("the log of run mine is damaged", "line 1"),
        write("runs/mine/metrics.jsonl", "{]\n{}\n"),
    ),
    Case(
        "report of a damaged study",
        "report mine",
        ("study.json is damaged", "study.json"),
        write("runs/mine/study.json", "{"),
    ),
    Case("prepare nothing", "prepare nothere", "there is no recipe, file or folder 'nothere'"),
    Case("prepare with a wrong setting", "prepare mytext.txt --data.separator comma", "data.separator is 'comma'"),
]


def flip(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)


def edit_config(name: str) -> None:
    path = Path("runs/mine/config.json")
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"model": config["model"] | {name: "red"}}))


def forget_the_data() -> None:
    path = Path("runs/mine/config.json")
    path.write_text(
        path.read_text().replace(json.loads(path.read_text())["data"]["source"], str(Path("mytext.txt").absolute()))
    )
    os.unlink("mytext.txt")


def test_there_are_enough_of_them() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 100


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_mistake_costs_three_lines(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "CUDA" in case.name and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    monkeypatch.chdir(copy_of_trained(tmp_path))
    monkeypatch.delenv("LILLIPUT_DATA", raising=False)
    case.prepare()
    before = sorted(path for path in Path().rglob("*") if "prepared" not in path.parts)
    outside = sorted(tmp_path.iterdir())
    words = [word for part in case.command.split() for word in (FLAGS if part == "SMALL" else [part])]
    code, out, err = lilliput(*words)
    assert (code, out) == (2, ""), err
    assert err.startswith("lilliput: ")
    assert len(err.splitlines()) <= 3, err
    assert "Traceback" not in err
    for part in (case.told,) if isinstance(case.told, str) else case.told:
        assert part in err
    after = sorted(path for path in Path().rglob("*") if "prepared" not in path.parts and path.name != ".lock")
    assert after == [path for path in before if path.name != ".lock"], "nothing is made or removed"
    assert sorted(tmp_path.iterdir()) == outside


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    os.chmod("runs", 0o500)
    code, _, err = lilliput("train", "mytext.txt", *FLAGS, "--name", "new")
    os.chmod("runs", 0o700)
    assert code == 2
    assert "permission denied" in err


def test_several_mistakes_are_told_at_once_a_line_each() -> None:
    code, _, err = lilliput(
        "train", "storybook", "--model.dim", "0", "--train.batch", "x", "--modle.heads", "3", "--size", "nano"
    )
    assert code == 2
    assert len(err.splitlines()) == 3
    assert all(name in err for name in ("model.dim", "train.batch", "modle.heads"))


# ---- what only looks wrong


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
def test_unusual_texts_work(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    code, _, err = lilliput("train", f"./{name}", *FLAGS)
    if len(name) > 200:
        assert code == 2
        assert "cannot be the name of a run" in err and "--name NAME" in err
    else:
        assert code == 0, err
        assert len(os.listdir("runs")) == 1
