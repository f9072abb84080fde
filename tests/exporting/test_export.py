"""Tests of whole exports: files, comparison in another process, failures, destinations, the model card."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.small_runs import copy_of_trained, lilliput, trained
from helpers.user_errors import refused
from lilliput.decoding.writer import load
from lilliput.exporting import gguf_file, huggingface
from lilliput.exporting.comparison import TOLERANCE, compare_greedy, compare_ids, compute_logits, largest_difference
from lilliput.exporting.comparison_texts import COUNT, find_texts
from lilliput.exporting.export import MARK, ExportRequest, check_destination, export_run
from lilliput.exporting.model_card import figures_text
from lilliput.storage.run_folders import RunFolder

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "README.md",
}


PAGE = (Path(__file__).parents[2] / "docs" / "exporting.md").read_text("utf-8")
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"^\$ (lilliput .*)$", PAGE, re.MULTILINE)]


def demo(folder: Path) -> Path:
    """Return a copy of the trained run with the name that the guide uses."""
    return (copy_of_trained(folder) / "runs" / "mine").rename(folder / "runs-demo")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run exported by the first command of the guide, and what it printed."""
    run = demo(tmp_path_factory.mktemp("exports"))
    command, name, *flags = COMMANDS[0]
    assert (command, name) == ("export", "demo")
    result = lilliput(command, str(run), *flags, "--licence", "mit", "--json")
    assert result.code == 0, result.err
    return run / "huggingface", json.loads(result.out)


def test_the_command_compares_the_folder_in_another_process(exported: tuple[Path, dict[str, Any]]) -> None:
    folder, found = exported
    assert {path.name for path in folder.iterdir()} == FILES | {MARK}
    assert found["format"] == "ApertusForCausalLM" and found["folder"] == str(folder)
    compared = found["comparison"]
    assert compared["texts"] == COUNT and 0.0 <= compared["largest_difference"] <= TOLERANCE
    assert compared["greedy_tokens"] > 0 and compared["consumer"].startswith("transformers 5")
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".writing")]


def test_the_files_set_the_start_token_and_the_maximum_length(exported: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = exported
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"], generation["pad_token_id"]) == (256, 256, 256)
    assert generation["max_length"] == 32
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 32
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 32


def test_auto_model_loads_the_trunk(exported: tuple[Path, dict[str, Any]]) -> None:
    from transformers import AutoModel

    trunk, info = AutoModel.from_pretrained(exported[0], output_loading_info=True)
    assert type(trunk).__name__ == "ApertusModel" and not info["missing_keys"]


def test_the_model_card(exported: tuple[Path, dict[str, Any]]) -> None:
    card = (exported[0] / "README.md").read_text("utf-8")
    assert "license: mit" in card.split("---")[1]
    titles = ("How to load it", "Data", "Figures", "Samples", "Limits", "Checks of this export", "Licence", "Settings")
    assert all(f"\n## {title}\n" in card for title in titles)
    assert "| validation |" in card and "| `model.dim` | 16 |" in card and "context is 32 tokens" in card
    assert all(len(line) <= 100 for line in card.splitlines() if not line.startswith("|"))


def test_figures_of_an_evaluation_with_intervals_and_baselines() -> None:
    evaluation = {
        "set": "validation",
        "loss": 1.5,
        "perplexity": 4.48,
        "bits_per_byte": 0.7,
        "interval": {"loss": [1.4, 1.6]},
        "baselines": [{"name": "unigram", "bits_per_byte": 2.25}],
    }
    lines = figures_text([], evaluation).splitlines()
    assert lines[2] == "| validation | 1.5000 | 4.48 | 0.7000 | 1.4000 to 1.6000 |"
    assert lines[3].startswith("| baseline: unigram | ") and "2.2500" in lines[3]


def test_an_existing_folder_is_replaced_only_on_request(exported: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = exported
    error = refused(lambda: check_destination(folder, overwrite=False))
    assert (error.code, error.setting) == ("export.exists", "out") and "--overwrite" in error.fix
    check_destination(folder, overwrite=True)
    (tmp_path / "mine.txt").write_text("not an export")
    assert refused(lambda: check_destination(tmp_path, overwrite=True)).code == "export.exists"
    assert refused(lambda: check_destination(tmp_path / "mine.txt", overwrite=True)).code == "export.exists"
    (tmp_path / "empty").mkdir()
    check_destination(tmp_path / "empty", overwrite=False)


def test_a_damaged_tensor_is_found_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder, out = huggingface.write_folder, tmp_path / "out"

    def write_and_damage(folder: Path, *rest: Any) -> None:
        write_folder(folder, *rest)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.1.mlp.up_proj.weight"][0] += 0.1
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(huggingface, "write_folder", write_and_damage)
    error = refused(lambda: export_run(trained() / "runs" / "mine", ExportRequest(to="huggingface", out=out)))
    assert error.code == "export.different" and "logits" in error.what
    assert not [*tmp_path.iterdir()]


def test_export_to_gguf(tmp_path: Path) -> None:
    out = tmp_path / "file"
    command, name, *flags = COMMANDS[1]
    assert (command, name) == ("export", "demo")
    result = lilliput(command, str(trained() / "runs" / "mine"), *flags, "--out", str(out), "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert {path.name for path in out.iterdir()} == {"mine-q8_0.gguf", "Modelfile", "README.md", MARK}
    assert found["format"] == "apertus" and found["comparison"]["tensors"] == 3 + 2 * 10
    assert 0.0 < found["comparison"]["rounding_difference"] < 0.1
    assert "FROM ./mine-q8_0.gguf" in (out / "Modelfile").read_text()
    assert "llama.cpp itself was not run" in " ".join((out / "README.md").read_text().split())
    again = ExportRequest(to="gguf", out=out, overwrite=True)
    assert export_run(trained() / "runs" / "mine", again).comparison["rounding_difference"] == 0.0
    assert {path.name for path in out.iterdir()} == {"mine-f32.gguf", "Modelfile", "README.md", MARK}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_changed_file_is_found_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file, out = gguf_file.write_file, tmp_path / "new" / "out"

    def write_and_damage(path: Path, *rest: Any) -> dict[str, Any]:
        metadata = write_file(path, *rest)
        data = bytearray(path.read_bytes())
        data[-40] ^= 0x40  # in the last tensor
        path.write_bytes(data)
        return metadata

    monkeypatch.setattr(gguf_file, "write_file", write_and_damage)
    error = refused(lambda: export_run(trained() / "runs" / "mine", ExportRequest(to="gguf", out=out)))
    assert error.code == "export.different" and "tensor" in error.what
    assert not [*tmp_path.iterdir()]


def test_texts_are_excerpts_of_the_validation_split_if_it_is_present(tmp_path: Path) -> None:
    writer = load(trained() / "runs" / "mine")
    texts, source = find_texts(writer, lambda *_: None)
    assert len(texts) == COUNT and source in (
        "built-in texts",
        "15 excerpts of the validation split and 5 built-in texts",
    )
    assert any("<|endoftext|>" in text for text in texts) and "" in texts and any(not text.isascii() for text in texts)
    assert len(writer.tokenizer.encode(texts[0])) >= writer.model.settings.context


def test_each_comparison_finds_a_difference() -> None:
    writer = load(trained() / "runs" / "mine")
    model, end = writer.model.float(), writer.tokenizer.end
    logits = compute_logits(model, [256, 1, 2])
    assert largest_difference(logits, logits.clone(), "test") == 0.0
    wrong = [logits + 2e-4, logits * torch.nan, logits[:, :-1]]
    assert all(
        refused(lambda one=one: largest_difference(logits, one, "test")).code == "export.different" for one in wrong
    )
    assert refused(lambda: compare_ids(["a"], [[256, 97]], [[97]], "test")).code == "export.different"
    assert refused(lambda: compare_ids(["a"], [[256, 97]], [[256]], "test")).code == "export.different"
    prompt, greedy = [256, 1, 2], list[int]()
    while len(greedy) < 29 and end not in greedy:
        greedy.append(int(compute_logits(model, prompt + greedy)[-1].argmax()))
    assert compare_greedy(model, prompt, greedy, end, "test") == 0
    worst = int(compute_logits(model, prompt)[-1].argmin())
    assert refused(lambda: compare_greedy(model, prompt, [worst], end, "test")).code == "export.different"


def test_a_run_that_cannot_be_exported_writes_nothing(tmp_path: Path) -> None:
    from helpers.small_runs import small_config, train_small

    run, _ = train_small(small_config(tmp_path, model__bias_head="true", train__steps="1"))
    before = sorted(path.name for path in run.folder.iterdir())
    result = lilliput("export", str(run.folder), "--to", "huggingface")
    assert result.code == 2 and result.error is not None
    assert (result.error.code, result.error.setting) == ("export.unsupported", "model.bias_head")
    assert sorted(path.name for path in run.folder.iterdir()) == before


def test_errors_of_the_command(tmp_path: Path) -> None:
    mine = str(trained() / "runs" / "mine")
    assert lilliput("export", mine, "--to", "huggingface", "--precision", "f16").errors[0].code == "flag.conflict"
    assert lilliput("export", mine, "--to", "onnx").code == 2
    assert lilliput("export", str(tmp_path / "none"), "--to", "gguf").errors[0].code == "run.missing"
    missing = lilliput("export", mine, "--to", "gguf", "--evaluation", str(tmp_path / "none.json"))
    assert missing.errors[0].code == "file.unreadable"
    assert RunFolder(Path(mine)).folder.is_dir()
