"""Names in reproductions: runs, studies, cells, metrics, rows and columns exist; published values are those of the reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_reproductions import write_reproduction
from lilliput.errors import UserErrors
from lilliput.studies.measure_settings import read_settings
from lilliput.studies.reproduction_files import (
    KINDS,
    SOURCE_KEYS,
    AbsentItem,
    HeadsItem,
    SamplesItem,
    TableItem,
    read_reproduction,
    shipped_reproductions,
)
from lilliput.studies.reproduction_plan import Form, load_plan

NAMES = sorted(shipped_reproductions())


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('place = "Figure 1"\ntitle = "Curves"', 'place = "Figure 1"\ntitle = "Sizes"', "twice"),
        ('kind = "heads"\nrun = "base"', 'kind = "heads"\nrun = "bass"', "use base"),
        ('"article-noun"]', '"article-nouns"]', "use article-noun"),
        ('"article-noun"]', '"article-noun", "first"]', "must have 2 functions"),
        ("layer = 1", "layer = 2", "has 2 layers"),
        ('kind = "plots"\nstudy = "small.toml"', 'kind = "plots"\nstudy = "smal.toml"', "use small.toml"),
        ("plots = [1]", "plots = [2]", "has 1 plots"),
        ('cell = "greedy"', 'cell = "gredy"', "use greedy"),
        ('window = "4 tokens"', 'window = "5 tokens"', "use 4 tokens"),
        ('over = "greedy"', 'over = "beam"', "unknown cell of base 'beam'"),
        ('metric = "bleu.4"', 'metric = "bleu.5"', "use bleu"),
        ('metric = "bleu.4"', 'metric = "stories.valid"', "requires the measure stories"),
        ('metric = "parameters.blocks"', 'metric = "parameters.block"', "use parameters.blocks"),
        ('metric = "batch_loss"', 'metric = "batch_los"', "use batch_loss"),
        ('metric = "validation.perplexity"', 'metric = "obama.perplexity"', "unknown metric of a history"),
        ('metric = "validation.loss", digits', "digits", "has no metric"),
        (
            'study = "small.toml"\nmetric',
            'study = "small.toml"\nrun = "base"\nmetric',
            "either a run or a study (got both)",
        ),
        ("values = [5.5, 200.0, 6]", "values = [5.5, 200.0]", "must have 3 values"),
        ('row = "sampling"', 'row = "samplings"', "use sampling"),
        ('item = "Strategies"', 'item = "Strategy"', "use Strategies"),
        ('item = "Strategies"\n', "", "requires an item"),
        ('"overlap", "example"', '"overlap"', "require the measure example"),
        ("generate.temperature = 1.0", "generate.temprature = 1.0", "generate.temprature"),
        ('recipe = "mytext.txt"', 'recipe = "mytxt.txt"', "mytxt.txt"),
    ],
)
def test_errors_of_names(tmp_path: Path, old: str, new: str, fact: str) -> None:
    path = write_reproduction(tmp_path)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(UserErrors) as found:
        load_plan(path)
    assert any(fact in str(error) for error in found.value.errors), str(found.value)


def test_all_errors_at_once(tmp_path: Path) -> None:
    path = write_reproduction(tmp_path)
    text = path.read_text("utf-8").replace('cell = "greedy"', 'cell = "gredy"').replace('"batch_loss"', '"loss"')
    path.write_text(text.replace("optimizer.kind", "optimizer.kind"), "utf-8")
    with pytest.raises(UserErrors) as found:
        load_plan(path)
    assert len(found.value.errors) == 4  # two values of the row, two rows of the column
    assert all(error.where and error.where.startswith("mine.toml, line ") for error in found.value.errors)


@pytest.mark.parametrize("form", [Form(), Form(quick=True), Form(minutes=5)], ids=["full", "quick", "minutes"])
@pytest.mark.parametrize("name", NAMES)
def test_shipped_files_name_existing_runs_metrics_and_cells(name: str, form: Form, tmp_path: Path) -> None:
    plan = load_plan(name, tmp_path, form)
    assert plan.runs
    used = {getattr(item, "run", None) for item in plan.content.items} | {
        getattr(item, "study", None) for item in plan.content.items
    }
    for item in plan.content.items:
        if isinstance(item, TableItem):
            used |= {one.run or one.study for one in (*item.rows, *item.columns)}
        if isinstance(item, AbsentItem):
            assert item.reason
    assert {*plan.runs, *plan.studies} <= used


def values(name: str, title: str) -> dict[str, tuple[float | str, ...]]:
    found = next(item for item in read_reproduction(name).items if item.title == title)
    assert isinstance(found, TableItem)
    return {row.name: row.values for row in found.rows}


def test_published_values_of_the_other_reports() -> None:
    assert values("fasttext", "Seven epochs")["7"] == (2.1328, 8.44, 2.3676, 10.67)
    assert values("fasttext", "Gradient accumulation")["8"] == (256, 1.7377, 4053.46)
    assert values("fasttext", "Gradient checkpointing")["with"] == (2.7775, 2.6213, 3621.79, 0.48)
    assert values("words", "Beam search")["beam search, k = 10"] == (0.029902, 8.074774, 2.573447)
    assert values("words", "KV cache, 20 prompts")["with"] == (573.218355, 1.454943, 3.64)
    assert values("gpt2", "Parameters by part") == {
        "embedding": (25_731_584,),
        "blocks": (18_905_088,),
        "output layer": (25_781_841,),
        "total": (70_419_537,),
    }
    assert values("words", "Tokens of the official validation set") == {"official": (3_796_367,)}
    assert values("gpt2", "Training time") == {"whole training": (876,), "one step": (0.175,)}
    log = values("gpt2", "Losses during training")
    assert len(log) == 11 and log["3,000"] == (1.8986, 2.5216)
    samples = [row[0] for row in values("course", "50 validation samples").values()]
    assert samples == [13.85, 13.85, 0.48, 0.35, 0.26, 0.19]
    assert values("course", "Gradient accumulation")["4"] == (64, 43, 2.24, 5.1)


def test_published_functions_of_heads() -> None:
    (heads,) = (item for item in read_reproduction("course").items if isinstance(item, HeadsItem))
    assert heads.published == (
        "previous", "subject-verb", "article-noun", "preposition-object", "first", "adjective-noun", "punctuation", "similarity",
    )  # fmt: skip


def test_samples_of_the_reports(tmp_path: Path) -> None:
    """Prompts, tokens and sets of the samples are those that the reports state or print."""
    found = {name: load_plan(name, tmp_path).runs[run].whole for name, run in
             (("course", "model"), ("fasttext", "base"), ("words", "model"))}  # fmt: skip
    tasks = {name: read_settings(study.settings) for name, study in found.items()}
    assert {name: (task.prompts, task.prompt_tokens, task.tokens) for name, task in tasks.items()} == {
        "course": (50, 5, 50),
        "fasttext": (50, 5, 50),
        "words": (50, 5, 40),
    }
    assert (tasks["words"].on, tasks["words"].prompt_choice) == ("official", "middle")
    quick = load_plan("words", tmp_path, Form(quick=True)).runs["model"].study
    assert read_settings(quick.settings).on == "validation", "its tests are removed"
    (samples,) = (item for item in read_reproduction("course").items if isinstance(item, SamplesItem))
    assert samples.shown == 50


def test_example_in_the_guide_is_valid(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reproductions.md").read_text("utf-8")
    path = tmp_path / "paper.toml"
    path.write_text(guide.partition("```toml\n")[2].partition("```")[0], "utf-8")
    for form in (Form(), Form(quick=True)):
        assert list(load_plan(path, tmp_path, form).runs) == ["base"]


def test_guide_lists_every_kind_and_key_of_a_source() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reproductions.md").read_text("utf-8")
    assert not [name for name in (*KINDS, *SOURCE_KEYS, *NAMES) if f"`{name}`" not in guide]


def test_published_values_of_the_speeches() -> None:
    epochs = values("speeches", "Classifier, each epoch")
    assert list(epochs) == [str(epoch) for epoch in range(1, 16)]
    assert epochs["14"] == (0.0026, 99.24, 87.60, 3.18)
    assert values("speeches", "Decoder, full attention")["500"] == (5.0014, 162.97, 375.02, 476.34, 414.64)
    assert values("speeches", "Decoder, window of 8 words")["500"] == (5.0922, 157.87, 368.99, 460.88, 402.49)
    assert values("speeches", "Parameters") == {"classifier": (576_467,), "decoder": (863_243,)}
