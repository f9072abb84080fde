"""Tests of loading settings from recipes and flags, and of their errors."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.errors import UserError, UserErrors
from lilliput.settings.loading import (
    REMOVED,
    SIZES,
    as_begun,
    config_from_dict,
    config_to_dict,
    load_config,
    replace,
    setting_types,
    without_removed,
)
from lilliput.settings.recipes import recipe_schema, shipped_recipes
from lilliput.settings.rules import conflicts
from lilliput.settings.tree import Config, ModelSettings, OptimizerSettings
from lilliput.storage.dotted_names import flatten


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LILLIPUT_DATA", raising=False)
    return tmp_path


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def errors(
    target: str | None = None, overrides: dict[str, str] | None = None, size: str | None = None
) -> list[UserError]:
    """Return the errors that `load_config` raises."""
    with pytest.raises(UserError) as found:
        load_config(target, overrides, size)
    return found.value.errors if isinstance(found.value, UserErrors) else [found.value]


def refused_once(
    target: str | None = None, overrides: dict[str, str] | None = None, size: str | None = None
) -> UserError:
    """Return the only error that `load_config` raises."""
    (error,) = errors(target, overrides, size)
    assert len(str(error).splitlines()) <= 3
    return error


# ---- layers ----------------------------------------------------------------------------------------------------------


def test_the_order_of_the_layers(folder: Path) -> None:
    """defaults < base < recipe < size < overrides: each of five settings comes from another layer."""
    write(folder / "base.toml", "[model]\ncontext = 11\nlayers = 12\ndim = 24\nheads = 3\nrotary_base = 500.0")
    recipe = write(
        folder / "recipe.toml", 'base = "base.toml"\n[model]\nlayers = 13\ndim = 26\nheads = 13\nrotary_base = 600'
    )
    default = ModelSettings()
    plain = load_config(recipe).model
    assert (plain.context, plain.layers, plain.dim, plain.rotary_base, plain.norm) == (11, 13, 26, 600.0, default.norm)
    sized = load_config(recipe, size="nano").model
    assert {name: getattr(sized, name) for name in SIZES["nano"]} == SIZES["nano"]
    assert sized.rotary_base == 600.0
    dotted = load_config(recipe, {"model.layers": "5", "model.rotary-base": "700"}, "nano").model
    assert (dotted.layers, dotted.rotary_base, dotted.dim) == (5, 700.0, SIZES["nano"]["dim"])


def test_bases_of_bases_are_relative_to_their_files(folder: Path) -> None:
    write(folder / "a/b/grand.toml", 'seed = 5\nname = "grand"\n[data]\nsource = "texts"')
    write(folder / "a/base.toml", 'base = "b/grand.toml"\n[model]\nlayers = 3')
    config = load_config(write(folder / "mine.toml", 'base = "a/base.toml"'))
    assert (config.seed, config.model.layers, config.name) == (5, 3, "grand")
    assert Path(config.data.source) == folder / "a/b/texts"


def test_a_base_is_not_searched_in_the_current_folder(folder: Path) -> None:
    write(folder / "other.toml", "seed = 5")
    error = refused_once(write(folder / "deep/recipe.toml", 'seed = 1\nbase = "other.toml"'))
    assert (error.code, error.where) == ("recipe.missing", "recipe.toml, line 2")


def test_the_default_name_of_a_run_is_that_of_the_recipe(folder: Path) -> None:
    assert load_config(write(folder / "quiet.toml", "seed = 2")).name == "quiet"
    assert load_config(write(folder / "loud.toml", 'name = "said"')).name == "said"
    assert load_config(write(folder / "loud.toml", 'name = "said"'), {"name": "flag"}).name == "flag"


@pytest.mark.parametrize(("target", "name"), [("my text.txt", "my-text"), ("stories", "stories"), (".", None)])
def test_a_text_or_a_folder_alone_is_enough(folder: Path, target: str, name: str | None) -> None:
    write(folder / "my text.txt", "Once.")
    (folder / "stories").mkdir()
    config = load_config(target)
    assert config.data.source == target
    assert config.name == (name or folder.name)


def test_the_built_in_corpus_by_its_name(folder: Path) -> None:
    assert load_config("storybook").data.source == "storybook"
    assert load_config(write(folder / "r.toml", '[data]\nsource = "storybook"')).data.source == "storybook"


def test_paths_are_relative_to_the_recipe_or_to_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        '[data]\nsource = "texts/a.txt"\nvalidation_source = "$LILLIPUT_DATA/b.txt"\n[tokenizer]\npath = "/abs/t.json"'
    )
    recipe = write(folder / "deep/r.toml", text)
    monkeypatch.setenv("LILLIPUT_DATA", "/data")
    config = load_config(recipe)
    assert Path(config.data.source) == folder / "deep/texts/a.txt"
    assert (config.data.validation_source, config.tokenizer.path) == ("/data/b.txt", "/abs/t.json")
    assert load_config(recipe, {"data.source": "here.txt"}).data.source == "here.txt"
    monkeypatch.delenv("LILLIPUT_DATA")
    assert load_config(recipe).data.validation_source == "$LILLIPUT_DATA/b.txt"  # reported as missing when it is opened


def test_every_input_of_a_recipe_is_relative_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '[data]\nsource = "load.py:stories"\ntests = ["a=t/a.txt", "b=$LILLIPUT_DATA/b.txt", "c=storybook"]\n'
        '[tokenizer]\nkind = "word"\nvocabulary = "v.txt"\n[vectors]\nsource = "w.vec"'
    )
    monkeypatch.setenv("LILLIPUT_DATA", "/data")
    recipe = write(folder / "deep/r.toml", text)
    config, deep = load_config(recipe), folder / "deep"
    assert config.data.source == str(deep / "load.py:stories")
    assert config.data.tests == (f"a={deep / 't/a.txt'}", "b=/data/b.txt", "c=storybook")
    assert (config.tokenizer.vocabulary, config.vectors.source) == (str(deep / "v.txt"), str(deep / "w.vec"))
    assert load_config(recipe, {"vectors.source": "train"}).vectors.source == "train"
    trains = write(folder / "deep/s.toml", '[data]\nsource = "tinystories"\n[vectors]\nsource = "train"')
    assert load_config(trains).vectors.source == "train"
    assert load_config(trains).data.source == "tinystories"


def test_a_dataset_of_the_hub_is_not_a_path(folder: Path) -> None:
    assert load_config("someone/Some-Stories").data.source == "someone/Some-Stories"
    recipe = write(folder / "deep/r.toml", '[data]\nsource = "someone/stories"')
    assert load_config(recipe).data.source == "someone/stories"
    (folder / "deep/someone").mkdir()  # a folder of that name exists: it is a path
    assert load_config(recipe).data.source == str(folder / "deep/someone/stories")
    (folder / "texts").mkdir()
    for mistyped in ("texts/storis", "other/storis.txt", "a/b/c", "../owner/name"):
        assert refused_once(mistyped).code == "recipe.missing"


def test_a_loader_in_python_is_a_source(folder: Path) -> None:
    write(folder / "load.py", "")
    assert load_config("load.py:stories").data.source == "load.py:stories"
    assert refused_once("lode.py:stories").code == "recipe.missing"


# ---- budgets ---------------------------------------------------------------------------------------------------------


def budget(config: Config) -> tuple[Any, ...]:
    return config.train.steps, config.train.tokens, config.train.minutes


def test_a_budget_replaces_the_budgets_below(folder: Path) -> None:
    recipe = write(folder / "r.toml", "[train]\nsteps = 7")
    heir = write(folder / "h.toml", 'base = "r.toml"\n[train]\ntokens = 99')
    assert budget(load_config()) == (None, None, 10.0)
    assert budget(load_config(recipe)) == (7, None, None)
    assert budget(load_config(heir)) == (None, 99, None)
    assert budget(load_config(heir, {"train.minutes": "0.5"})) == (None, None, 0.5)
    assert budget(load_config(recipe, {"train.steps": "8"})) == (8, None, None)
    assert budget(replace(load_config(recipe), {"train.tokens": 5})) == (None, 5, None)


def test_a_time_limit_belongs_to_the_budget_it_is_set_with(folder: Path) -> None:
    recipe = write(folder / "r.toml", "[train]\nsteps = 7\nmax_minutes = 3")
    heir = write(folder / "h.toml", 'base = "r.toml"\n[train]\nbatch = 2')
    for flags, limit in (
        ({}, 3.0),
        ({"train.max_minutes": "4"}, 4.0),
        ({"train.max_minutes": "none"}, None),
        ({"train.steps": "8"}, None),
        ({"train.minutes": "8", "train.max_minutes": "5"}, 5.0),
    ):
        assert load_config(heir, flags).train.max_minutes == limit, flags
    assert replace(load_config(recipe), {"train.tokens": 5}).train.max_minutes is None
    assert replace(load_config(recipe), {"train.batch": 5}).train.max_minutes == 3.0


@pytest.mark.parametrize("flags", [{"train.steps": "3", "train.tokens": "4"}, {"train.minutes": "none"}])
def test_two_budgets_or_none_are_errors(folder: Path, flags: dict[str, str]) -> None:
    assert refused_once(None, flags).setting == "train.steps"
    error = refused_once(write(folder / "r.toml", "[train]\nsteps = 3\nminutes = 4"))
    assert (error.code, error.setting, error.where) == ("setting.conflict", "train.steps", "r.toml, line 2")


# ---- values ----------------------------------------------------------------------------------------------------------


def test_none_switches_off_in_recipes_and_flags(folder: Path) -> None:
    write(
        folder / "b.toml", '[model]\nwindow = 4\npositions = "learned"\n[optimizer]\nclip = 2.0\n[generate]\ntop_k = 3'
    )
    recipe = write(
        folder / "r.toml", 'base = "b.toml"\n[model]\nwindow = "none"\npositions = "none"\n[optimizer]\nclip = "none"'
    )
    config = load_config(recipe, {"generate.top_k": "none"})
    assert (config.model.window, config.model.positions, config.optimizer.clip, config.generate.top_k) == (None,) * 4
    assert load_config(None, {"data.validation_source": "none"}).data.validation_source is None
    assert load_config(None, {"generate.prompt": "none"}).generate.prompt == "none"  # a string without an off value


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("model.window", "8", 8),
        ("model.window", "4,none", (4, None)),
        ("model.window", "[4, none, 16]", (4, None, 16)),
        ("optimizer.betas", "0.8,0.99", (0.8, 0.99)),
        ("optimizer.lr", "3e-3", 3e-3),
        ("optimizer.lr", ".5", 0.5),
        ("train.tokens", "1_000_000", 1_000_000),
        ("train.steps", "1e3", 1000),
        ("model.tied", "true", True),
        ("model.tied", "false", False),
        ("model.norm", "layer", "layer"),
        ("data.source", "12", "12"),
        ("data.tests", "a=x.txt", ("a=x.txt",)),
        ("data.tests", "a=x.txt,b=y.txt", ("a=x.txt", "b=y.txt")),
        ("name", "true", "true"),
        ("generate.prompt", "Once, upon [a] time", "Once, upon [a] time"),
    ],
)
def test_flags_are_parsed_by_the_type_of_the_setting(flag: str, value: str, expected: Any) -> None:
    config: Any = load_config(None, {flag: value})
    for part in flag.split("."):
        config = getattr(config, part)
    assert config == expected
    assert type(config) is type(expected)


def test_a_pattern_in_toml(folder: Path) -> None:
    assert load_config(write(folder / "r.toml", '[model]\nwindow = [4, "none"]')).model.window == (4, None)


def test_derived_settings_are_filled_in() -> None:
    model = load_config(None, {"model.dim": "96", "model.heads": "6"}).model
    assert (model.hidden, model.kv_heads, model.head_dim) == (384, 6, None)


def test_the_width_of_a_head_replaces_the_rule_of_divisible_dim() -> None:
    shape = {"model.dim": "300", "model.heads": "8", "model.positions": "sinusoidal"}
    error = refused(lambda: load_config(None, shape))
    assert (error.code, error.setting) == ("setting.conflict", "model.heads") and "model.head_dim" in str(error)
    assert load_config(None, shape | {"model.head_dim": "37"}).model.head_dim == 37
    assert load_config(None, shape | {"model.head_dim": "38", "model.positions": "rotary"}).model.head_dim == 38


def test_settings_are_frozen() -> None:
    config = load_config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.dim = 2  # type: ignore[misc]
    assert load_config() == config
    assert hash(config.model) == hash(load_config().model)


# ---- errors --------------------------------------------------------------------------------------------------------

MANY = """seed = -1
nam = "x"
[model]
dim = "wide"
layer = 3
heads = true
feed_forward = "swish"
[optimzer]
lr = 3
[optimizer]
betas = [0.9]
[train]
batch = 2.5
"""


def test_all_errors_are_reported_at_once_with_their_lines(folder: Path) -> None:
    found = errors(write(folder / "bad.toml", MANY), {"trian.steps": "3", "generate.top_k": "zero"})
    assert {(error.setting, error.code, error.where) for error in found} == {
        ("nam", "setting.unknown", "bad.toml, line 2"),
        ("model.layer", "setting.unknown", "bad.toml, line 5"),
        ("optimzer.lr", "setting.unknown", "bad.toml, line 9"),
        ("trian.steps", "setting.unknown", "overrides"),
        ("model.heads", "setting.value", "bad.toml, line 6"),
        ("seed", "setting.value", "bad.toml, line 1"),
        ("model.dim", "setting.value", "bad.toml, line 4"),
        ("model.feed_forward", "setting.choice", "bad.toml, line 7"),
        ("optimizer.betas", "setting.value", "bad.toml, line 11"),
        ("train.batch", "setting.value", "bad.toml, line 13"),
        ("generate.top_k", "setting.value", "overrides"),
    }
    assert len(found) == 11


@pytest.mark.parametrize(
    ("name", "value", "close"),
    [
        ("nam", "x", "name"),
        ("model.layer", "3", "model.layers"),
        ("optimzer.lr", "3", "optimizer.lr"),
        ("trian.steps", "3", "train.steps"),
        ("model.feed_forward", "swigl", "swiglu"),
        ("model.norm", "layr", "layer"),
    ],
)
def test_the_nearest_valid_name_is_in_the_fix(name: str, value: str, close: str) -> None:
    assert close in (refused_once(None, {name: value}).fix or "").split()


def test_an_error_in_a_base_has_the_place_in_the_base(folder: Path) -> None:
    write(folder / "base.toml", "[model]\n\ndim = -4")
    error = refused_once(write(folder / "r.toml", 'base = "base.toml"\n[model]\nlayers = 2'))
    assert (error.code, error.setting, error.where) == ("setting.value", "model.dim", "base.toml, line 3")


def test_the_origin_of_overrides_is_the_place_of_their_errors() -> None:
    error = refused(lambda: load_config(None, {"model.dim": "x"}, origin="command line"))
    assert isinstance(error, UserErrors)
    assert error.errors[0].where == "command line"


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        ({"model.dim": "10", "model.heads": "3"}, "model.heads"),
        ({"model.dim": "12", "model.heads": "4"}, "model.heads"),
        ({"model.kv_heads": "3"}, "model.kv_heads"),
        ({"model.kv_heads": "8"}, "model.kv_heads"),
        ({"model.head_dim": "7"}, "model.head_dim"),
        (
            {"model.dim": "1", "model.heads": "1", "model.norm": "layer-unbiased", "model.positions": "none"},
            "model.dim",
        ),
        ({"model.dim": "9", "model.heads": "1", "model.positions": "sinusoidal"}, "model.dim"),
        ({"model.window": "[]"}, "model.window"),
        ({"model.task": "classifier"}, "data.labelled"),
        ({"model.tied": "true", "vectors.source": "train"}, "model.tied"),
        ({"model.classes": "3"}, "model.classes"),
        ({"model.soft_cap": "15", "model.task": "classifier", "data.labelled": "true"}, "model.soft_cap"),
        ({"model.task": "both", "data.labelled": "true", "data.windows": "overlapping"}, "data.windows"),
        (
            {"model.task": "both", "data.labelled": "true", "train.language_weight": "0", "train.label_weight": "0"},
            "train.language_weight",
        ),
        ({"model.task": "both"}, "data.labelled"),
        ({"model.task": "classifier", "data.labelled": "true", "train.z_loss": "1e-4"}, "train.z_loss"),
        ({"train.balance_labels": "true"}, "train.balance_labels"),
        ({"train.label_weight": "0.5"}, "train.label_weight"),
        ({"model.task": "classifier", "data.labelled": "true", "train.language_weight": "0"}, "train.language_weight"),
        ({"train.pair_updates": "9", "model.task": "classifier", "data.labelled": "true"}, "train.pair_updates"),
        ({"train.pair_updates": "9", "model.tied": "true"}, "train.pair_updates"),
        ({"train.pair_updates": "9", "model.initialisation": "gpt2"}, "train.pair_updates"),
        ({"train.pair_updates": "9", "model.norm_placement": "post"}, "train.pair_updates"),
        ({"train.pair_updates": "9", "model.positions": "learned"}, "train.pair_updates"),
        ({"train.recompute_every": "2"}, "train.recompute_every"),
        ({"schedule.kind": "inverse-sqrt", "schedule.warmup": "0"}, "schedule.warmup"),
        ({"model.tied": "true", "optimizer.head_lr": "1e-3"}, "optimizer.head_lr"),
        ({"model.tied": "true", "vectors.width": "300"}, "model.tied"),
        ({"vectors.projection": "false", "vectors.width": "300"}, "vectors.projection"),
        ({"tokenizer.vocab_size": "256"}, "tokenizer.vocab_size"),
        ({"tokenizer.vocab_size": "2", "tokenizer.kind": "word"}, "tokenizer.vocab_size"),
        ({"model.tied": "true", "model.task": "classifier", "model.classes": "2"}, "model.tied"),
        ({"tokenizer.kind": "byte", "model.vocab_size": "256"}, "model.vocab_size"),
        ({"data.tests": "a.txt"}, "data.tests"),
        ({"data.tests": "a=x,a=y"}, "data.tests"),
        ({"data.tests": "train=x"}, "data.tests"),
        ({"data.tests": "../a=x"}, "data.tests"),
        ({"tokenizer.sos_id": "1"}, "tokenizer.sos_id"),
        ({"tokenizer.kind": "word", "tokenizer.unk_id": "none"}, "tokenizer.unk_id"),
        ({"tokenizer.vocabulary": "v.txt"}, "tokenizer.vocabulary"),
        ({"generate.temperature": "0", "generate.final_temperature": "1"}, "generate.final_temperature"),
        ({"generate.temperature": "0", "generate.top_k": "5"}, "generate.top_k"),
        ({"generate.beams": "3", "generate.entropy_temperature": "1.2"}, "generate.entropy_temperature"),
        ({"generate.final_temperature": "1", "generate.entropy_temperature": "1"}, "generate.entropy_temperature"),
        ({"generate.repetition_window": "64"}, "generate.repetition_window"),
        ({"generate.beams": "3", "generate.top_p": "0.9"}, "generate.top_p"),
        ({"generate.beams": "3", "generate.temperature": "0", "generate.typical": "0.9"}, "generate.typical"),
        (
            {"generate.beams": "3", "generate.sample_beams": "true", "generate.temperature": "0"},
            "generate.sample_beams",
        ),
        ({"generate.sample_beams": "true"}, "generate.sample_beams"),
        ({"generate.length_penalty": "0.5"}, "generate.length_penalty"),
        ({"generate.early_stop": "never"}, "generate.early_stop"),
        ({"generate.beam_groups": "2"}, "generate.beam_groups"),
        ({"generate.diversity": "1"}, "generate.diversity"),
        ({"generate.beams": "5", "generate.beam_groups": "2"}, "generate.beam_groups"),
        ({"generate.beams": "5", "generate.beam_groups": "10"}, "generate.beam_groups"),
        ({"generate.beams": "4", "generate.diversity": "1"}, "generate.diversity"),
        ({"generate.tokens": "9", "generate.min_tokens": "10"}, "generate.min_tokens"),
        ({"generate.penalise_prompt": "false"}, "generate.penalise_prompt"),
        ({"generate.bad_words": '["cat", ""]'}, "generate.bad_words"),
        ({"generate.stop": '[""]'}, "generate.stop"),
        ({"generate.bad_words": "cat,dog", "generate.forced_words": "dog,sun"}, "generate.forced_words"),
        ({"generate.engine": "torch", "generate.quantise": "int8"}, "generate.quantise"),
    ],
)
def test_settings_that_conflict(flags: dict[str, str], setting: str) -> None:
    error = errors(None, flags)[0]
    assert (error.code, error.setting, error.where) == (
        "setting.conflict",
        setting,
        "overrides" if setting in flags else None,
    )


@pytest.mark.parametrize(
    "flags",
    [
        {"generate.temperature": "0", "generate.repetition_penalty": "1.2", "generate.bad_words": "cat"},
        {"generate.beams": "6", "generate.beam_groups": "3", "generate.diversity": "1"},
        {"generate.beams": "4", "generate.length_penalty": "0", "generate.early_stop": "first"},
        {"generate.beams": "4", "generate.temperature": "0"},
        {"generate.beams": "4", "generate.sample_beams": "true", "generate.top_k": "9", "generate.typical": "0.9"},
        {"generate.tokens": "9", "generate.min_tokens": "9", "generate.final_temperature": "0.1"},
        {"generate.penalise_prompt": "false", "generate.no_repeat_ngram": "3"},
        {"generate.penalise_prompt": "false", "generate.presence_penalty": "-0.1"},
        {"generate.engine": "numba", "generate.quantise": "int8"},
    ],
)
def test_generate_settings_without_conflict(flags: dict[str, str]) -> None:
    assert not conflicts(load_config(None, flags))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("train.steps", "-3"), ("train.steps", "0"), ("train.minutes", "0"), ("train.max_minutes", "0"), ("train.minutes", "inf"),
        ("seed", "4294967296"), ("model.dropout", "1"), ("model.dropout", "-0.1"), ("optimizer.lr", "nan"),
        ("optimizer.lr", "0"), ("generate.temperature", "-1"), ("generate.top_k", "0"),
        ("data.validation_share", "0"), ("model.window", "0"), ("model.window", "4,-1"), ("model.window", ""),
        ("model.dim", ""), ("model.dim", "{a=1}"), ("model.dim", "none"), ("model.norm", "batch"),
        ("model.tied", "maybe"), ("optimizer.betas", "0.9,0.95,0.1"), ("optimizer.betas", "1,0.5"),
        ("train.device", "tpu"), ("schedule.warmup", "-1"),
        ("schedule.final", "1.5"), ("schedule.decay", "-0.1"), ("schedule.decay", "1.1"),
    ],
)  # fmt: skip
def test_values_out_of_bounds(flag: str, value: str) -> None:
    error = refused_once(None, {flag: value})
    choice = flag in ("model.norm", "train.device")
    assert (error.code, error.setting) == ("setting.choice" if choice else "setting.value", flag)
    assert error.where == "overrides"
    assert repr(value) in error.what or error.what.startswith(f"each value of {flag} ")  # of a list, only the wrong one
    assert not any(
        jargon in error.what for jargon in ("a valid", "should", "Field", "Input", "Tuple", "unable", "validation,")
    )


def test_a_group_is_not_a_setting(folder: Path) -> None:
    error = refused_once(None, {"model": "3"})
    assert (error.code, error.setting) == ("setting.group", "model")
    error = refused_once(write(folder / "r.toml", "model = 3"))
    assert (error.code, error.setting, error.where) == ("setting.group", "model", "r.toml, line 1")


def test_recipes_that_cannot_be_read(folder: Path) -> None:
    assert refused_once("nope.toml").code == "recipe.missing"
    assert refused_once(write(folder / "r.toml", "seed = ")).code == "file.syntax"
    assert "line 2" in refused_once(write(folder / "r.toml", "seed = 1\nname = x\n")).what
    (folder / "r.toml").write_bytes(b"seed = 1\n# caf\xe9\n")
    error = refused_once("r.toml")
    assert (error.code, error.where) == ("file.not-utf8", f"{folder.resolve() / 'r.toml'}, byte 14")
    error = refused_once(write(folder / "r.toml", "\nbase = 3"))
    assert (error.code, error.where) == ("recipe.missing", "r.toml, line 2")


def test_bases_that_form_a_cycle(folder: Path) -> None:
    write(folder / "a.toml", 'base = "b.toml"')
    write(folder / "b.toml", 'base = "a.toml"')
    error = refused_once("a.toml")
    assert (error.code, error.where) == ("recipe.cycle", "a.toml -> b.toml -> a.toml")
    assert refused_once(write(folder / "self.toml", 'base = "self.toml"')).where == "self.toml -> self.toml"


def test_a_plugin_in_a_recipe_names_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('plugin = "mine.py"\n')
    error = refused(lambda: load_config(path))
    assert error.code == "setting.unknown"
    assert "bad.toml, line 1" in str(error) and "--plugin FILE.py" in str(error)


def test_an_unknown_size() -> None:
    error = refused_once(size="huge")
    assert error.code == "setting.choice"
    assert all(size in (error.fix or "") for size in SIZES)


# ---- round trips -----------------------------------------------------------------------------------------------------

models = st.builds(
    ModelSettings,
    dim=st.sampled_from([64, 128]),
    heads=st.sampled_from([2, 4]),
    layers=st.integers(1, 9),
    window=st.none() | st.integers(1, 99) | st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    positions=st.sampled_from([None, "rotary", "learned", "sinusoidal"]),
    dropout=st.floats(0.0, 0.99),
    tied=st.booleans(),
    vocab_size=st.none() | st.integers(257, 10**6),
)
optimizers = st.builds(
    OptimizerSettings,
    lr=st.floats(1e-9, 10.0),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    clip=st.none() | st.floats(1e-3, 10.0),
)
configs = st.builds(
    Config, model=models, optimizer=optimizers, seed=st.integers(0, 2**32 - 1), name=st.none() | st.text(max_size=9)
)


@given(config=configs.filter(lambda config: config.name != "none"))
def test_config_json_is_complete(config: Config) -> None:
    saved = json.loads(json.dumps(config_to_dict(config)))
    loaded = config_from_dict(saved, where="config.json")
    assert config_from_dict(config_to_dict(loaded), where="config.json") == loaded
    resolved = dataclasses.replace(config.model, hidden=4 * config.model.dim, kv_heads=config.model.heads)
    assert loaded == dataclasses.replace(config, model=resolved)
    assert not conflicts(loaded)


def test_an_error_in_a_saved_config_names_its_file() -> None:
    saved = config_to_dict(load_config())
    saved["model"]["flash"] = True
    error = refused(lambda: config_from_dict(saved, where="runs/x/config.json"))
    assert (error.code, error.setting) == ("setting.unknown", "model.flash")
    assert "runs/x/config.json" in str(error)


REMOVED_IN_USE = [("model.pairs", 100), ("model.mix_embedding", True), ("train.naive_bayes", 0.3)]


def saved_with(**values: Any) -> dict[str, Any]:
    """Return saved settings with the removed ones, all off except `values` (section__name)."""
    saved = config_to_dict(load_config())
    for name, off in REMOVED.items():
        section, _, last = name.partition(".")
        saved[section][last] = values.get(f"{section}__{last}", off)
    return saved


def test_removed_settings_that_were_off_are_dropped() -> None:
    assert {name for name, _ in REMOVED_IN_USE} == REMOVED.keys()
    assert config_from_dict(saved_with(), where="runs/x/config.json") == load_config()
    assert as_begun(saved_with(), where="runs/x/config.json") == flatten(config_to_dict(load_config()))


@pytest.mark.parametrize("read", [config_from_dict, as_begun, without_removed])
@pytest.mark.parametrize(("name", "value"), REMOVED_IN_USE)
def test_saved_settings_that_used_a_removed_setting_are_errors(
    read: Callable[[dict[str, Any], str], Any], name: str, value: Any
) -> None:
    with pytest.raises(UserErrors) as error:
        read(saved_with(**{name.replace(".", "__"): value}), "runs/x/config.json")
    (mistake,) = error.value.errors
    assert (mistake.code, mistake.setting, mistake.where) == ("setting.removed", name, "runs/x/config.json")
    assert json.dumps(value) in mistake.what
    assert "lilliput 0.1.0" in (mistake.fix or "")


def test_all_removed_settings_in_use_are_reported_at_once() -> None:
    saved = saved_with(**{name.replace(".", "__"): value for name, value in REMOVED_IN_USE})
    with pytest.raises(UserErrors) as error:
        config_from_dict(saved, "runs/x/config.json")
    assert [mistake.setting for mistake in error.value.errors] == list(REMOVED)


@pytest.mark.parametrize("name", REMOVED)
def test_a_recipe_or_override_with_a_removed_setting_is_an_error(folder: Path, name: str) -> None:
    """Also if it is off: user input is never ignored silently."""
    section, _, last = name.partition(".")
    recipe = write(folder / "r.toml", f'[{section}]\n{last} = "none"')
    for error, where in ((refused_once(recipe), "r.toml, line 2"), (refused_once(None, {name: "1"}), "overrides")):
        assert (error.code, error.setting, error.where) == ("setting.removed", name, where)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model.vocab_sice": 512}, "setting.unknown"),
        ({"model": ModelSettings()}, "setting.group"),
        ({"model.pairs": None}, "setting.removed"),
        ({"model.kv_heads": 3}, "setting.conflict"),
        ({"train.steps": 3, "train.tokens": 4}, "setting.conflict"),
        ({"model.dim": "wide"}, "setting.value"),
        ({"model.dim": None}, "setting.value"),
        ({"model.dim": True}, "setting.value"),
        ({"optimizer.betas": (0.9,)}, "setting.value"),
        ({"model.norm": "batch"}, "setting.choice"),
        ({"seed": -1}, "setting.value"),
    ],
)
def test_replace_is_checked(changes: dict[str, Any], code: str) -> None:
    error = refused(lambda: replace(load_config(), changes))
    assert (error.code, error.setting) == (code, next(iter(changes)))


def test_replace_changes_a_copy() -> None:
    config = load_config()
    changed = replace(config, {"model.vocab_size": 512, "model.window": [4, "none"], "seed": 9, "name": "none"})
    assert (changed.model.vocab_size, changed.model.window, changed.seed, changed.name) == (512, (4, None), 9, None)
    assert config == load_config()
    assert changed.train is config.train


@given(config=configs.filter(lambda config: config.name != "none"))
def test_replace_equals_a_round_trip_through_saved_settings(config: Config) -> None:
    loaded = config_from_dict(config_to_dict(config), where="config.json")
    saved = config_to_dict(loaded)
    saved["model"]["layers"], saved["seed"] = 3, 5
    assert replace(loaded, {"model.layers": 3, "seed": 5}) == config_from_dict(saved, where="config.json")
    assert replace(loaded, {}) == loaded


# ---- the schema ------------------------------------------------------------------------------------------------------


def fits(value: Any, node: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Validate with the used part of JSON schema; other keywords fail the test."""
    notes = {"description", "title", "default", "$defs", "$schema"}
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    for key, rule in node.items():
        if key in notes or (key in ("additionalProperties", "items") and "prefixItems" in node):
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if key == "$ref":
            ok = fits(value, schema["$defs"][rule.removeprefix("#/$defs/")], schema)
        elif key == "anyOf":
            ok = any(fits(value, option, schema) for option in rule)
        elif key == "const":
            ok = value == rule
        elif key == "enum":
            ok = value in rule
        elif key == "type":
            ok = isinstance(value, kinds[rule]) and (rule == "boolean" or not isinstance(value, bool))
        elif key == "properties":
            ok = not isinstance(value, dict) or all(
                fits(value[name], rule[name], schema) for name in value.keys() & rule.keys()
            )
        elif key == "additionalProperties":
            ok = rule is not False or not isinstance(value, dict) or value.keys() <= node["properties"].keys()
        elif key == "items":
            ok = not isinstance(value, list) or all(fits(item, rule, schema) for item in value)
        elif key == "prefixItems":
            ok = not isinstance(value, list) or all(
                fits(item, part, schema) for item, part in zip(value, rule, strict=False)
            )
        elif key in ("minItems", "maxItems"):
            ok = not isinstance(value, list) or (len(value) >= rule if key == "minItems" else len(value) <= rule)
        else:
            bounds = {"minimum": lambda v, r: v >= r, "maximum": lambda v, r: v <= r}
            bounds |= {"exclusiveMinimum": lambda v, r: v > r, "exclusiveMaximum": lambda v, r: v < r}
            ok = not number or bounds[key](value, rule)
        if not ok:
            return False
    return True


def test_the_schema_describes_every_setting() -> None:
    schema = recipe_schema()
    for name in setting_types():
        section, _, inner = name.rpartition(".")
        node = (
            schema if not section else schema["$defs"][schema["properties"][section]["$ref"].removeprefix("#/$defs/")]
        )
        assert node["properties"][inner]["description"], name
        assert node["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema
    assert '"null"' not in json.dumps(schema)


@pytest.mark.parametrize(
    ("recipe", "right"),
    [
        ('base = "x.toml"\nseed = 3\nname = "none"', True),
        ('[model]\nwindow = [4, "none"]\npositions = "none"\ntied = true', True),
        ("[optimizer]\nbetas = [0.9, 0.95]\nlr = 1", True),
        ("[model]\nlayer = 3", False),
        ("[model]\nlayers = 0", False),
        ("[modle]\nlayers = 3", False),
        ('[model]\npositions = "absolute"', False),
        ("[model]\nwindow = [0]", False),
        ("[optimizer]\nbetas = [0.9]", False),
        ("[model]\ntied = 1", False),
        ('[model]\ndim = "none"', False),
    ],
)
def test_the_schema_accepts_valid_recipes_only(recipe: str, right: bool) -> None:
    schema = recipe_schema()
    assert fits(tomllib.loads(recipe), schema, schema) == right


def test_the_shipped_recipes_load_and_fit_the_schema() -> None:
    schema, recipes = recipe_schema(), shipped_recipes()
    assert "demo" in recipes
    for name, path in recipes.items():
        assert fits(tomllib.loads(path.read_text(encoding="utf-8")), schema, schema), name
        assert load_config(name).name == name
        assert load_config(f"recipes/{name}.toml") == load_config(str(path)) == load_config(name)
