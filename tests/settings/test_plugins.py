"""A plugin adds a choice of each kind, which works like a built-in one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers.plugins import plugins_end_here, write_plugin
from helpers.small_runs import FLAGS, lilliput, write_text
from helpers.small_studies import write_study
from helpers.tiny_models import tiny_model
from lilliput.decoding.writer import load
from lilliput.model.attention import Capture
from lilliput.model.transformer import build_model
from lilliput.settings.choice_tables import TABLES
from lilliput.settings.loading import load_config
from lilliput.settings.plugins import load_plugin

CHOICES = {
    "norm": ["--model.norm", "scale"],
    "positions": ["--model.positions", "alibi"],
    "windowed positions": ["--model.positions", "alibi", "--model.window", "5,none"],
    "feed-forward": ["--model.feed_forward", "sine"],
    "optimizer": ["--optimizer.kind", "lion"],
    "tokenizer": ["--tokenizer.kind", "halves"],
    "processor": ["--generate.processors", "no-e"],
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    with plugins_end_here():
        yield str(write_plugin(tmp_path))


@pytest.mark.parametrize("choice", CHOICES)
def test_a_registered_choice_trains_resumes_generates_and_is_counted(choice: str, plugin: str) -> None:
    flags = [*FLAGS, *CHOICES[choice], "--plugin", plugin, "--train.steps", "20"]
    whole = lilliput("train", "mytext.txt", *flags, "--name", "whole")
    assert whole.code == 0, whole.err
    # Resumed == uninterrupted: a run of 20 steps without its later checkpoints.
    again = lilliput("train", "mytext.txt", *flags, "--name", "again")
    assert again.code == 0, again.err
    for folder in sorted(Path("runs/again/checkpoints").iterdir())[1:]:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    resumed = lilliput("train", "mytext.txt", *flags, "--name", "again", "--resume")
    assert resumed.code == 0, resumed.err
    ends = [load(f"runs/{name}", "cpu") for name in ("whole", "again")]
    expected = ends[0].model.state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in ends[1].model.state_dict().items())
    # With and without a cache.
    texts = []
    for engine in ("torch", "uncached"):
        output = lilliput("generate", "whole", "--plugin", plugin, "--engine", engine, "--temperature", "0", "--json")
        assert output.code == 0, output.err
        texts.append(json.loads(output.out)["samples"][0]["text"])
    assert texts[0] == texts[1]
    if choice == "processor":
        write = [
            "generate",
            "whole",
            "--plugin",
            plugin,
            "--temperature",
            "1.5",
            "--tokens",
            "300",
            "--min-tokens",
            "300",
        ]
        ruled, free = (lilliput(*write, "--processors", name).out for name in ("no-e", ""))
        assert "e" in free and "e" not in ruled
    # Counted, in a dry run too.
    dry = json.loads(lilliput("train", "mytext.txt", *flags, "--model.vocab_size", "300", "--dry-run", "--json").out)
    given = dict(zip(flags[::2], flags[1::2], strict=True)) | {"--model.vocab_size": "300"}
    config = load_config("mytext.txt", {name[2:]: value for name, value in given.items() if name != "--plugin"})
    model = build_model(config.model, config.vectors, device="meta")
    assert dry["parameters"]["total"] == sum(weight.numel() for weight in model.parameters())
    assert dry["memory_bytes"] > 4 * dry["parameters"]["total"]


def test_alibi_is_the_same_in_every_path_of_attention(plugin: str) -> None:
    """Captured weights, packed rows and a cache equal a reference in float64."""
    load_plugin(plugin)
    model = tiny_model(positions="alibi", layers=1, qk_norm=False).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5, 2]])
    capture = Capture()
    with torch.inference_mode():
        model(ids, capture=capture)
        (weights,) = capture.weights[0]
        attention = model.blocks[0].attention
        x = attention.norm(model.embedding(ids))
        heads = model.settings.heads
        groups = model.settings.kv_heads
        qkv = attention.inner.qkv(x).view(1, 6, -1, model.head_dim)
        q, k, _ = torch.split(qkv, [heads, groups, groups], dim=2)
        k = k.repeat_interleave(heads // groups, dim=2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / model.head_dim**0.5
        place = torch.arange(6, dtype=torch.float64)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
        scores -= slopes[:, None, None] * (place[:, None] - place).abs()
        scores = scores.masked_fill(place[None, :] > place[:, None], -torch.inf)
    torch.testing.assert_close(weights, scores.softmax(dim=-1), rtol=0, atol=1e-12)


def test_a_run_with_an_unknown_choice_names_it(plugin: str) -> None:
    flags = [*FLAGS, "--model.norm", "scale", "--train.steps", "2", "--name", "mine"]
    assert lilliput("train", "mytext.txt", *flags, "--plugin", plugin).code == 0
    with plugins_end_here():
        del TABLES["model.norm"]._entries["scale"]
        output = lilliput("generate", "mine")
    assert (output.code, [error.setting for error in output.errors]) == (2, ["model.norm"])


@pytest.mark.parametrize(
    "content, code",
    [
        (None, "file.missing"),
        ("import nowhere_to_be_found", "plugin.failed"),
        ("1 +", "plugin.failed"),
        ('import lilliput\nlilliput.register("model.norm", "rms", int)', "setting.choice"),
        ('import lilliput\nlilliput.register("model.nrm", "x", int)', "setting.choice"),
    ],
)
def test_a_plugin_that_cannot_be_loaded(content: str | None, code: str, plugin: str) -> None:
    if content is not None:
        Path("broken.py").write_text(content)
    output = lilliput("train", "mytext.txt", "--plugin", "broken.py", "--dry-run")
    assert output.code == 2 and output.error is not None and output.error.code == code


def test_a_study_passes_its_plugins_on(plugin: str) -> None:
    axes = {"norm": {"rms": {"model.norm": "rms"}, "scale": {"model.norm": "scale"}}}
    path = write_study(Path(), axes, name="norms", budget={"steps": 2})
    result = lilliput("study", str(path), "--plugin", plugin, "--json")
    assert result.code == 0, result.err
    assert {run.name for run in Path("runs/norms").iterdir() if run.is_dir()} >= {"rms-seed1", "scale-seed1"}


def test_a_recipe_cannot_name_a_plugin(plugin: str) -> None:
    Path("recipe.toml").write_text(f'plugin = "{plugin}"\n[data]\nsource = "mytext.txt"\n')
    output = lilliput("train", "recipe.toml", "--dry-run")
    assert output.code == 2 and "alibi" not in TABLES["model.positions"]
