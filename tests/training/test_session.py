"""Sessions: an interrupted and resumed run is bit-identical to an uninterrupted one, and errors change nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lilliput
from helpers.labelled_corpora import labelled_changes, write_labelled
from helpers.small_runs import (
    MEMORY,
    TEXT,
    abandon,
    assert_equal_tensors,
    copy_of_trained,
    small_config,
    train_small,
    trained,
    write_text,
)
from helpers.user_errors import refused
from lilliput.decoding.writer import load
from lilliput.errors import UserError
from lilliput.model.transformer import weights
from lilliput.settings.loading import REMOVED, replace
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import save_checkpoint
from lilliput.storage.dotted_names import flatten
from lilliput.storage.run_folders import RunFolder
from lilliput.training import model_setup
from lilliput.training.events import Evaluated, Finished, Saved, Stepped
from lilliput.training.precision import Precision
from lilliput.training.process_group import World
from lilliput.training.run_start import ClaimedRun, run_folder
from lilliput.training.session import open_session, threads_of
from lilliput.training.training_data import fit_labels
from torture import outcome

# Settings for which resumed runs must be bit-identical; each run has 17 to 21 events.
VARIANTS: dict[str, dict[str, str]] = {
    "steps": {"model__dropout": "0.2"},
    "tokens": {"train__tokens": "1000", "model__dropout": "0.2", "model__tied": "true", "train__precision": "float32"},
    "accumulated": {"train__accumulate": "3", "model__window": "8,none", "train__keep": "1", "log__every": "3"},
    "muon": {"optimizer__kind": "muon", "optimizer__lr": "0.01"},
    "pairs": {"train__pair_updates": "3", "model__initialisation": "zero-residual", "optimizer__kind": "muon"},
    "overlapping": {"data__windows": "overlapping", "model__dropout": "0.2"},
    "classifier": {"model__dropout": "0.2", "train__accumulate": "2"},
    "averaged": {"optimizer__average": "0.9", "model__dropout": "0.2", "model__tied": "true"},
    "scaled": {"train__precision": "float16", "optimizer__kind": "sgd", "model__dropout": "0.2"},
    "recomputed": {"train__recompute": "block", "model__dropout": "0.2", "optimizer__kind": "muon"},
    "compiled": {
        "train__precision": "float32",
        "model__dropout": "0.2",
        "model__head_dim": "16",
        "model__window": "8,none",
    },
    "early": {"optimizer__lr": "100", "schedule__kind": "constant", "train__patience": "1", "evaluate__every": "2"},
    "rising": {"optimizer__lr": "100", "schedule__kind": "constant", "train__keep": "1", "evaluate__every": "2"},
}


@pytest.fixture(scope="module")
def references() -> Iterator[dict[str, tuple[Path, dict[str, Any], list[str], int]]]:
    """For each variant: its folder, the outcome of the uninterrupted run, its checkpoints, its number of events."""
    found = {}
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        for variant in VARIANTS:
            folder = Path(place, variant)
            folder.mkdir()
            run, events = train_small(variant_config(folder, variant, "reference"))
            found[variant] = (folder, outcome(run.folder), names(run), len(events))
        yield found


def variant_config(folder: Path, variant: str, name: str) -> Config:
    changes = VARIANTS[variant]
    if variant == "classifier":
        changes = changes | labelled_changes(folder)
    if variant == "overlapping":
        again = write_text(folder, "again.txt", TEXT[:500])
        changes = changes | {"data__validation_source": str(again), "data__tests": f"again={again}"}
    return small_config(folder, name, **changes)


def names(run: RunFolder) -> list[str]:
    return [checkpoint.name for checkpoint in run.checkpoints()]


def notes_of(config: Config) -> list[str]:
    with open_session(config, resume=True) as session:
        for _ in session.events([]):
            pass
    return session.notes


# ---- interrupted = uninterrupted


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_after_every_event(references: dict[str, Any], variant: str) -> None:
    """The generator is dropped after event n; for odd n, the last line of the log is incomplete."""
    folder, expected, checkpoints, count = references[variant]
    for after in range(count):
        config = variant_config(folder, variant, f"killed-{after}")
        assert abandon(config, after)
        log = run_folder(config) / "metrics.jsonl"
        if after % 2:
            log.write_bytes(log.read_bytes()[:-20])
        run, _ = train_small(config, resume=True)
        assert outcome(run.folder) == expected, f"killed after event {after}"
        assert names(run) == checkpoints, f"killed after event {after}"
        shutil.rmtree(run.folder)


def test_killed_many_times(references: dict[str, Any]) -> None:
    folder, expected, _, _ = references["steps"]
    config = small_config(folder, "worn", **VARIANTS["steps"])
    resume, deaths = False, 0
    while abandon(config, 7, resume):  # one step more than a resumed run repeats, so that it ends
        resume, deaths = True, deaths + 1
    assert deaths >= 3
    assert outcome(run_folder(config)) == expected


@pytest.mark.parametrize("variant", ["steps", "rising", "classifier"])
def test_stopped_after_every_event(references: dict[str, Any], variant: str) -> None:
    """`stop()` after event n: between step and save, between save and evaluation, after an evaluation."""
    folder, expected, _, count = references[variant]
    for after in range(1, count):
        config = variant_config(folder, variant, f"stopped-{after}")
        with open_session(config) as session:
            events = []
            for event in session.events([]):
                events.append(event)
                if len(events) == after:
                    session.trainer.stop()
        *_, before, last = events
        assert isinstance(last, Finished)
        assert last.interrupted == (after < count - 1), "also during the final evaluation"
        if last.interrupted:
            assert "finished" not in {event["event"] for event in session.run.metrics()}
            assert session.run.last and session.run.last.step == last.step, "a stop saves"
            evaluated = isinstance(before, Evaluated) and after < len(events) - 1
            assert last.step == 8 or not evaluated, "and does not evaluate first"
            train_small(config, resume=True)
        assert outcome(session.run.folder) == expected, f"stopped after event {after}"
        shutil.rmtree(session.run.folder)


def test_stopped_before_the_first_step(references: dict[str, Any]) -> None:
    folder, expected, checkpoints, _ = references["steps"]
    config = small_config(folder, "early", **VARIANTS["steps"])
    with open_session(config) as session:
        session.trainer.stop()
        events = list(session.events([]))
    assert [type(event) for event in events] == [Finished]
    (note,) = notes_of(config)
    assert "no checkpoint" in note
    assert outcome(session.run.folder) == expected
    assert names(session.run) == checkpoints


def test_a_moved_and_renamed_run_is_resumed(references: dict[str, Any], tmp_path: Path) -> None:
    folder, expected, _, _ = references["steps"]
    config = small_config(folder, "moving", **VARIANTS["steps"])
    abandon(config, 9)
    shutil.move(run_folder(config), tmp_path / "moved")
    run, _ = train_small(replace(config, {"name": "moved", "log.folder": str(tmp_path)}), resume=True)
    assert outcome(run.folder) == expected


def test_prepared_data_can_be_removed(references: dict[str, Any]) -> None:
    folder, expected, _, _ = references["steps"]
    config = small_config(folder, "unprepared", **VARIANTS["steps"])
    abandon(config, 9)
    shutil.rmtree(folder / "prepared")
    assert outcome(train_small(config, resume=True)[0].folder) == expected


# ---- a finished run


def test_a_vocabulary_file_can_be_removed(tmp_path: Path) -> None:
    words = sorted({*TEXT.split(), "<pad>", "<unk>"})
    vocabulary = write_text(tmp_path, "vocabulary.txt", "\n".join(words))
    changes = {"tokenizer__kind": "word", "tokenizer__split": "spaces", "tokenizer__vocabulary": str(vocabulary)}
    reference, _ = train_small(small_config(tmp_path, "reference", **changes))
    config = small_config(tmp_path, "stopped", **changes)
    assert abandon(config, after=6)
    vocabulary.unlink()
    assert outcome(train_small(config, resume=True)[0].folder) == outcome(reference.folder)


def test_a_finished_run_does_not_train_again(tmp_path: Path) -> None:
    folder = copy_of_trained(tmp_path)
    before = outcome(folder / "runs" / "mine")
    config = RunFolder(folder / "runs" / "mine").config()
    settings = small_config(folder, data__source=config["data"]["source"], data__cache=config["data"]["cache"])
    with open_session(settings, resume=True) as session:
        events = list(session.events([]))
    (note,) = session.notes
    assert "budget" in note
    assert not any(isinstance(event, Stepped) for event in events)
    assert outcome(session.run.folder) == before


# ---- errors


def test_changed_data_is_an_error_and_no_file_changes(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    run, _ = train_small(config)
    log, weights = run.metrics_path.read_bytes(), run.checkpoints()
    write_text(tmp_path, text=TEXT + "\n<|endoftext|>\nOne more.")
    error = refused(lambda: train_small(config, resume=True))
    assert (error.code, error.setting, error.where) == ("data.changed", "data.source", str(tmp_path / "mytext.txt"))
    assert "step-000008" in error.what
    assert run.metrics_path.read_bytes() == log
    assert run.checkpoints() == weights
    write_text(tmp_path, text=TEXT)
    train_small(config, resume=True)


def test_changed_settings_are_an_error(tmp_path: Path) -> None:
    abandon(small_config(tmp_path), 4)
    error = refused(lambda: train_small(small_config(tmp_path, optimizer__lr="0.5"), resume=True))
    assert (error.code, error.setting) == ("setting.changed", "optimizer.lr")
    assert error.where == str(tmp_path / "runs" / "mine")
    assert "0.002" in error.what and "0.5" in error.what


def test_a_run_that_is_older_than_a_setting_is_resumed(tmp_path: Path) -> None:
    """Only with the default of the setting."""
    config = small_config(tmp_path)
    abandon(config, 4)
    kept = RunFolder.open(tmp_path / "runs" / "mine").folder / "config.json"
    settings = json.loads(kept.read_text())
    del settings["train"]["z_loss"]
    kept.write_text(json.dumps(settings))
    other = small_config(tmp_path, train__z_loss="0.1")
    error = refused(lambda: train_small(other, resume=True))
    assert (error.code, error.setting) == ("setting.changed", "train.z_loss")
    run, _ = train_small(config, resume=True)
    assert run.checkpoints()[-1].step == 8


def rewrite_settings(run: RunFolder, changes: dict[str, Any]) -> None:
    """Write dotted settings into the config.json of the run and of its newest checkpoint, which is saved again."""
    checkpoint = run.checkpoints()[-1]
    settings = run.config()
    for name, value in changes.items():
        section, _, last = name.partition(".")
        settings[section][last] = value
    (run.folder / "config.json").write_text(json.dumps(settings))
    save_checkpoint(
        run,
        checkpoint.step,
        model=checkpoint.load_model(),
        state=checkpoint.load_state(),
        state_json=checkpoint.state_json(),
        config=settings,
        tokenizer_json=checkpoint.tokenizer_json(),
    )


def test_a_run_of_a_version_with_more_settings_is_resumed_and_started_from(tmp_path: Path) -> None:
    """A removed setting that was off changes nothing: the weights equal those of a run without it."""
    reference, _ = train_small(small_config(tmp_path, "reference"))
    abandon(small_config(tmp_path), 4)
    rewrite_settings(RunFolder.open(tmp_path / "runs" / "mine"), REMOVED)
    run, _ = train_small(small_config(tmp_path), resume=True)
    assert_equal_tensors(run.checkpoints()[-1].load_model(), reference.checkpoints()[-1].load_model())
    rewrite_settings(run, REMOVED)
    with open_session(small_config(tmp_path, "tuned"), start_from=str(run.folder)) as session:
        assert_equal_tensors(weights(session.trainer.model), run.checkpoints()[-1].load_model())
    assert not set(REMOVED) & set(flatten(RunFolder.open(tmp_path / "runs" / "tuned").config()))


@pytest.mark.parametrize(("name", "value"), [("model.pairs", 9), ("train.naive_bayes", 0.3)])
def test_a_run_that_used_a_removed_setting_is_an_error(tmp_path: Path, name: str, value: Any) -> None:
    run, _ = train_small(small_config(tmp_path))
    rewrite_settings(run, {name: value})
    for error, folder in (
        (refused(lambda: train_small(small_config(tmp_path), resume=True)), run.folder),
        (
            refused(lambda: train_small(small_config(tmp_path, "tuned"), start_from=str(run.folder))),
            run.checkpoints()[-1].folder,
        ),
    ):
        assert name in error.what and str(value) in error.what
        assert str(folder / "config.json") in str(error)
    assert not (tmp_path / "runs" / "tuned").exists()


def test_an_existing_run_is_an_error_before_any_work(tmp_path: Path) -> None:
    abandon(small_config(tmp_path), 2)
    shutil.rmtree(tmp_path / "prepared")
    error = refused(lambda: train_small(small_config(tmp_path)))
    assert (error.code, error.where) == ("run.exists", str(tmp_path / "runs" / "mine"))
    assert not (tmp_path / "prepared").exists()


def test_training_a_run_twice_at_once_is_an_error(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with open_session(config) as session:
        events = session.events([])
        list(itertools.islice(events, 4))
        assert refused(lambda: train_small(config, resume=True)).code == "run.locked"
        with pytest.raises(UserError) as found, open_session(config, overwrite=True):
            pass
        assert found.value.code == "run.locked"
        list(events)
    train_small(config, resume=True)


def test_a_vocabulary_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    error = refused(
        lambda: train_small(
            small_config(tmp_path, tokenizer__kind="bpe", tokenizer__vocab_size="300", model__vocab_size="280")
        )
    )
    assert (error.code, error.setting) == ("setting.conflict", "model.vocab_size")
    assert "280" in error.what and "300" in error.what
    assert not (tmp_path / "runs").exists()


# ---- labels


def test_a_classifier_needs_labels(tmp_path: Path) -> None:
    refused(lambda: small_config(tmp_path, model__task="classifier", model__classes="3"))
    labelled = small_config(tmp_path, model__task="classifier", model__classes="3", data__labelled="true")
    error = refused(lambda: fit_labels(labelled, None, None))
    assert (error.code, error.setting) == ("data.label", "model.task")


def test_the_number_of_classes_is_that_of_the_labels(tmp_path: Path) -> None:
    changes = labelled_changes(tmp_path)
    error = refused(lambda: train_small(small_config(tmp_path, **(changes | {"model__classes": "4"}))))
    assert (error.code, error.setting) == ("setting.conflict", "model.classes")
    assert "bear, bee, owl" in error.what
    assert not (tmp_path / "runs").exists()
    config = small_config(tmp_path, **changes)
    left_open = dataclasses.replace(config, model=dataclasses.replace(config.model, classes=None))
    assert fit_labels(left_open, ["bear", "bee", "owl"], None).model.classes == 3
    language = small_config(tmp_path)
    assert fit_labels(language, ["labels", "that", "are", "not", "used"], None) is language


def test_checkpoints_have_the_names_of_the_labels(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, **labelled_changes(tmp_path)))
    assert [checkpoint.labels() for checkpoint in run.checkpoints()] == [["bear", "bee", "owl"]] * 2
    assert RunFolder(trained() / "runs" / "mine").checkpoints()[-1].labels() is None
    refused(lambda: load(run.folder).generate("The"))


def test_from_a_classifier(tmp_path: Path) -> None:
    """The documents must have the same labels in the same order."""
    changes = labelled_changes(tmp_path)
    ancestor, _ = train_small(small_config(tmp_path, "base", **changes))
    more = write_labelled(tmp_path, "more.tsv", 30, first=9)
    tuned = small_config(tmp_path, "tuned", data__source=str(more))
    with open_session(tuned, start_from=str(ancestor.folder)) as session:
        assert ancestor.best
        assert_equal_tensors(dict(session.trainer.model.state_dict()), ancestor.best.load_model())
        assert session.run.last and session.run.last.labels() == ["bear", "bee", "owl"]
        events = list(session.events([]))
    assert isinstance(events[-1], Finished)
    more.write_text(more.read_text().replace("owl\t", "eagle\t"))
    other = small_config(tmp_path, "other", data__source=str(more))
    error = refused(lambda: train_small(other, start_from=str(ancestor.folder)))
    assert (error.code, error.setting) == ("checkpoint.mismatch", "data.source")
    assert "bear, bee, eagle" in error.what and "bear, bee, owl" in error.what


# ---- word vectors


def write_vectors(folder: Path, words: Iterable[str], width: int = 6) -> Path:
    generator = torch.Generator().manual_seed(3)
    rows = [
        f"{word} {' '.join(f'{x:.4f}' for x in torch.randn(width, generator=generator).tolist())}" for word in words
    ]
    path = folder / "words.vec"
    path.write_text(f"{len(rows)} {width}\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("frozen", ["true", "false"])
def test_word_vectors_are_loaded_once_and_saved_in_checkpoints(tmp_path: Path, frozen: str) -> None:
    source = write_vectors(tmp_path, ["the", "bee", "saw", "moon", "sea", "bell"])
    changes = {
        "tokenizer__kind": "word",
        "tokenizer__lowercase": "true",
        "vectors__source": str(source),
        "vectors__frozen": frozen,
    }
    config = small_config(tmp_path, **changes)
    with open_session(config) as session:
        model, tokenizer = session.trainer.model, session.prepared.tokenizer
        line = next(line for line in source.read_text().splitlines() if line.startswith("moon "))
        row = model.embedding.table.weight[tokenizer.encode("moon")[0]]
        assert row.tolist() == pytest.approx([float(number) for number in line.split()[1:]], abs=1e-6)
        assert session.trainer.config.vectors.width == 6
        list(itertools.islice(session.events([]), 9))
    reference, _ = train_small(small_config(tmp_path, "reference", **changes))
    source.unlink()  # the checkpoint has them
    run, _ = train_small(config, resume=True)
    assert outcome(run.folder) == outcome(reference.folder)
    tuned, _ = train_small(small_config(tmp_path, "tuned"), start_from=str(run.folder))
    assert tuned.config()["vectors"]["width"] == 6
    assert load(tuned.folder).generate("the bee", temperature=0.0, tokens=3) is not None


# ---- damage


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["model.safetensors", "state.safetensors", "state.json", "manifest.json"])
def test_a_damaged_newest_checkpoint_costs_only_its_steps(references: dict[str, Any], file: str) -> None:
    folder, expected, checkpoints, _ = references["steps"]
    config = small_config(folder, f"damaged-{file.split('.')[0]}-{file.split('.')[1]}", **VARIANTS["steps"])
    abandon(config, 12)
    run = RunFolder(run_folder(config))
    assert len(run.checkpoints()) > 1
    flip_a_bit(run.checkpoints()[-1].folder / file)
    (note,) = notes_of(config)
    assert f"checkpoint {names(run)[0][:5]}" in note and file in note
    assert outcome(run.folder) == expected
    assert names(run) == checkpoints


def test_a_run_without_an_intact_checkpoint_is_an_error_and_stays_unchanged(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    abandon(config, 12)
    run = RunFolder(run_folder(config))
    log = run.metrics_path.read_bytes()
    for checkpoint in run.checkpoints():
        flip_a_bit(checkpoint.folder / "model.safetensors")
    error = refused(lambda: train_small(config, resume=True))
    assert (error.code, error.where) == ("checkpoint.damaged", str(run.checkpoints_folder))
    assert "step-000006" in error.what and "model.safetensors" in error.what
    assert run.metrics_path.read_bytes() == log


def test_a_damaged_best_does_not_end_the_run(tmp_path: Path) -> None:
    config = small_config(
        tmp_path, optimizer__lr="100", schedule__kind="constant", evaluate__every="2", train__keep="1"
    )
    abandon(config, 14)
    run = RunFolder(run_folder(config))
    assert run.best and run.last and run.best != run.last
    flip_a_bit(run.best.folder / "model.safetensors")
    (note,) = notes_of(config)
    assert "model.safetensors" in note
    assert run.best
    run.best.verify()
    assert next(event for event in run.metrics() if event.get("whole"))["weights"] == run.best.step


# ---- another machine


def test_a_changed_precision_gives_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of earlier versions do not have the choice of `auto`, which depends on the machine."""
    config = small_config(tmp_path, train__precision="auto")
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(model_setup, "build_precision", lambda _, device, now=dtype: Precision(device, now))
        if dtype is torch.float32:
            assert abandon(config, 8)
            run = RunFolder(run_folder(config))
            assert run.config()["train"]["precision"] in ("float32", "bfloat16")
            run.save_config(run.config() | {"train": run.config()["train"] | {"precision": "auto"}})
    (note,) = notes_of(config)
    assert all(fact in note for fact in ("precision", "from float32", "to bfloat16"))
    assert run.config()["train"]["precision"] == "auto"


@pytest.mark.parametrize(("setting", "value"), [("train.precision", "bfloat16"), ("train.threads", 2)])
def test_a_chosen_setting_may_be_left_open_but_not_changed(setting: str, value: Any, tmp_path: Path) -> None:
    config = small_config(tmp_path, train__precision="float32", train__threads="none")
    assert abandon(config, 5)
    assert RunFolder(run_folder(config)).config()["train"]["threads"] == 1
    error = refused(lambda: notes_of(replace(config, {setting: value})))
    assert (error.code, error.setting) == ("setting.changed", setting)
    assert notes_of(replace(config, {"train.precision": "auto"})) == []


@pytest.mark.parametrize(("processes", "expected"), [(2, 1), (1, 3)])
def test_another_number_of_processes_does_not_use_all_threads_in_each(
    processes: int, expected: int, tmp_path: Path
) -> None:
    """The run has three threads; the default of torch is one here, as in a process of torchrun."""

    class Group(World):
        pass

    config = small_config(tmp_path)
    run, _ = train_small(config)
    world = Group()
    world.processes = processes
    claimed = ClaimedRun(run, replace(config, {"train.threads": 3}), True, False, True, None, run.last)
    assert threads_of(claimed, world) == expected


# ---- from another run


def test_fine_tuning_keeps_weights_and_tokenizer_and_resets_the_rest(tmp_path: Path) -> None:
    text = "\n<|endoftext|>\n".join(f"Letter {n}: the bees are well, and the honey is late." for n in range(40))
    write_text(tmp_path, "letters.txt", text)
    base = small_config(tmp_path, "base", tokenizer__kind="bpe", tokenizer__vocab_size="300")
    ancestor, _ = train_small(base)
    changes = {"data__source": str(tmp_path / "letters.txt"), "model__dropout": "0.1", "model__dim": "64"}
    tuned = small_config(tmp_path, "tuned", **changes)
    with open_session(tuned, start_from=str(ancestor.folder)) as session:
        trainer = session.trainer
        assert ancestor.best
        assert_equal_tensors(dict(trainer.model.state_dict()), ancestor.best.load_model())
        assert trainer.optimizer.state_dict()["state"] == {}
        assert (trainer.step, trainer.tokens) == (0, 0)
        assert trainer.tokenizer_json == ancestor.best.tokenizer_json()
        assert (trainer.config.model.dim, trainer.config.model.vocab_size) == (16, 300)
        assert trainer.config.model.dropout == 0.1, "dropout is that of the new run"
        events = list(session.events([]))
    assert isinstance(events[-1], Finished)
    assert load(session.run.folder).tokenizer.to_json() == ancestor.best.tokenizer_json()


def test_fine_tuning_continues_without_its_ancestor(tmp_path: Path) -> None:
    """The run saves the ancestor's weights and tokenizer before its first step."""
    ancestor, _ = train_small(small_config(tmp_path, "base", tokenizer__kind="bpe", tokenizer__vocab_size="300"))
    write_text(tmp_path, "letters.txt", "The bees are well. " * 200)
    changes = {"data__source": str(tmp_path / "letters.txt"), "model__dropout": "0.1"}
    reference, events = train_small(small_config(tmp_path, "reference", **changes), start_from=str(ancestor.folder))
    interrupted = [small_config(tmp_path, f"killed-{after}", **changes) for after in range(0, len(events), 3)]
    for after, config in zip(range(0, len(events), 3), interrupted, strict=True):
        with open_session(config, start_from=str(ancestor.folder)) as session:
            stream = session.events([])
            list(itertools.islice(stream, after))
            stream.close()  # type: ignore[attr-defined]
        assert session.run.last, "the ancestor's weights are saved before the first step"
    shutil.rmtree(ancestor.folder)
    shutil.rmtree(tmp_path / "prepared")
    for config in interrupted:
        run = RunFolder(run_folder(config))
        settings = replace(config, _flat(run.config()))
        assert outcome(train_small(settings, resume=True)[0].folder) == outcome(reference.folder)


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {f"{group}.{name}": value for group in ("model", "tokenizer") for name, value in config[group].items()}


def test_start_from_a_name_and_overwrite_the_same_run(tmp_path: Path) -> None:
    train_small(small_config(tmp_path, "base"))
    with open_session(small_config(tmp_path, "base"), overwrite=True, start_from="base") as session:
        assert session.run.last and session.run.last.step == 0
        list(session.events([]))
    assert "bose" in refused(lambda: train_small(small_config(tmp_path, "x"), start_from="bose")).what


# ---- from Python


def test_train_from_python(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    calls: list[str] = []

    class Recorder:
        def __call__(self, event: object) -> None:
            calls.append(type(event).__name__)

        def close(self) -> None:
            calls.append("closed")

    run = lilliput.train(config, observers=[Recorder()], progress=False)
    assert calls.count("Stepped") == 8
    assert calls[-2:] == ["Finished", "closed"]
    assert outcome(run.folder)["weights"] == outcome(trained() / "runs" / "mine")["weights"]
    assert outcome(train_small(config, resume=True)[0].folder) == outcome(run.folder)


def test_observers_are_closed_after_an_exception(tmp_path: Path) -> None:
    closed = []

    class Failing:
        def __call__(self, event: object) -> None:
            if isinstance(event, Saved):
                raise RuntimeError("error of an observer")

        def close(self) -> None:
            closed.append(True)

    with pytest.raises(RuntimeError, match="error of an observer"):
        lilliput.train(small_config(tmp_path), observers=[Failing()], progress=False)
    assert closed == [True]
    train_small(small_config(tmp_path), resume=True)


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer__average": "0.9"}, {"train__precision": "bfloat16"}],
)
def test_a_sample_uses_the_weights_that_would_be_saved(tmp_path: Path, changes: dict[str, str]) -> None:
    with open_session(small_config(tmp_path, generate__prompt="The", generate__temperature="0", **changes)) as session:
        events = session.events([])
        before = session.write_sample()
        random = torch.get_rng_state()
        assert session.write_sample() == before
        assert torch.equal(torch.get_rng_state(), random), "generation has its own random state"
        assert session.trainer.model.training
        next(event for event in events if isinstance(event, Saved))
        assert session.run.last
        assert session.write_sample() == "The" + load(session.run.last.folder).generate("The")


def test_samples_do_not_change_the_run(tmp_path: Path) -> None:
    with open_session(small_config(tmp_path, model__dropout="0.2")) as session:
        for _ in session.events([]):
            session.write_sample()
    plain, _ = train_small(small_config(tmp_path, "plain", model__dropout="0.2"))
    assert outcome(session.run.folder) == outcome(plain.folder)
