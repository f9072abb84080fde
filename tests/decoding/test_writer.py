"""Text in, text out: by path and nothing else, the same every time, whatever the prompt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from lilliput.config import replace
from lilliput.decoding.processors import build_chooser
from lilliput.decoding.stream import stream
from lilliput.decoding.writer import Writer, collect, load
from lilliput.errors import UserError
from lilliput.runs import Run
from small import copy_of_trained, small_config, train_small, trained


@pytest.fixture(scope="module")
def writer() -> Writer:
    return load(trained() / "runs" / "mine", device="cpu")


def test_a_checkpoint_needs_nothing_else(tmp_path: Path, writer: Writer) -> None:
    best = Run(trained() / "runs" / "mine").best
    assert best
    alone = Path(shutil.copytree(best.folder, tmp_path / "somewhere"))
    assert load(alone).generate("Once", seed=3) == writer.generate("Once", seed=3)


def test_a_run_gives_its_best_checkpoint(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, optimizer__lr="100", schedule__kind="constant"))
    assert run.best and run.last and run.best != run.last
    loaded = load(run.folder)
    assert loaded.checkpoint == run.best
    for name, tensor in run.best.load_model().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)


def test_the_type_of_the_numbers_is_the_runs(writer: Writer) -> None:
    assert {weight.dtype for weight in writer.model.parameters()} == {torch.float64}
    assert not writer.model.training


def test_the_same_seed_gives_the_same_text(writer: Writer) -> None:
    assert writer.generate("The", seed=5) == writer.generate("The", seed=5)
    assert len({writer.generate("The", seed=seed, tokens=20) for seed in range(5)}) > 1


def test_greedy_needs_no_seed(writer: Writer) -> None:
    assert len({writer.generate("The", temperature=0.0, seed=seed) for seed in range(5)}) == 1
    assert writer.generate("The", temperature=3.0, top_k=1) == writer.generate("The", temperature=0.0)


def test_alone_and_in_company_texts_are_equal(writer: Writer) -> None:
    """Row i draws from seed + i. In float64: in float32 two rows of a batch differ by rounding."""
    prompts = ["", "Once upon a time", "é", "x" * 100, "The"]
    together = writer.samples(prompts, tokens=40, seed=10)
    for row, prompt in enumerate(prompts):
        (alone,) = writer.samples([prompt], tokens=40, seed=10 + row)
        assert (alone.text, alone.tokens, alone.finish) == (
            together[row].text,
            together[row].tokens,
            together[row].finish,
        )
        assert alone.logprob == pytest.approx(together[row].logprob, abs=1e-9)


@pytest.mark.parametrize(
    "prompt", ["", " ", "\n", "a" * 31, "b" * 32, "c" * 33, "d" * 500, "日本語 🐝", "\udce9", "<|endoftext|>", "\x00"]
)
def test_any_prompt_is_answered(writer: Writer, prompt: str) -> None:
    (sample,) = writer.samples([prompt], tokens=40, seed=1)
    assert sample.prompt == prompt
    assert 1 <= sample.tokens <= 40
    assert sample.finish == ("length" if sample.tokens == 40 else "end")
    assert sample.logprob < 0
    sample.text.encode()


def test_an_empty_prompt_is_the_start_of_a_document(writer: Writer) -> None:
    end = writer.tokenizer.end
    assert writer.encode_prompt("") == [end]
    assert writer.encode_prompt("a<|endoftext|>")[0] == end
    assert end not in writer.encode_prompt("a<|endoftext|>")[1:], "a user's words cannot end a document"


@pytest.fixture(scope="module")
def word_writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    folder = tmp_path_factory.mktemp("words")
    run, _ = train_small(small_config(folder, tokenizer__kind="word"))
    return load(run.folder, device="cpu")


def test_words_begin_with_their_own_start(word_writer: Writer) -> None:
    tokenizer = word_writer.tokenizer
    assert tokenizer.start != tokenizer.end
    assert word_writer.encode_prompt("") == [tokenizer.start]
    assert word_writer.encode_prompt("The moon") == [tokenizer.start, *tokenizer.encode("The moon")]


@pytest.mark.parametrize("prompt", ["", "The moon", "The moon saw the", "A bee saw the sea."])
def test_words_are_joined_to_the_prompt_as_in_prose(word_writer: Writer, prompt: str) -> None:
    """Prompt and text together read as the tokenizer writes all of their tokens."""
    tokenizer, encoded = word_writer.tokenizer, word_writer.encode_prompt(prompt)
    assert tokenizer.decode(encoded) == prompt
    for seed in range(6):
        chooser = build_chooser(1.0, [seed])
        ids = [written.id for written in stream(word_writer.model, [encoded], chooser, (), 7, tokenizer.end)]
        (sample,) = word_writer.samples([prompt], tokens=7, temperature=1.0, seed=seed)
        assert sample.tokens == len(ids)
        assert prompt + sample.text == tokenizer.decode([*encoded, *ids])


def test_bytes_are_joined_without_anything(writer: Writer) -> None:
    before = writer.encode_prompt("Zoë")
    assert {writer.joint(before, [first]) for first in range(256)} == {""}


def test_the_pieces_are_the_text(writer: Writer) -> None:
    """Half a character waits for its other half; nothing is lost or told twice."""
    prompts = ["", "Zoë", "Once"]
    pieces = list(writer.write(prompts, tokens=60, temperature=2.0, seed=2))
    samples = collect(prompts, iter(pieces))
    assert samples == writer.samples(prompts, tokens=60, temperature=2.0, seed=2)
    for row, sample in enumerate(samples):
        own = [piece for piece in pieces if piece.row == row]
        assert [piece.finish for piece in own[:-1]] == [None] * (len(own) - 1)
        assert len(own) == sample.tokens
        assert sample.logprob == sum(piece.logprob for piece in own)


def test_defaults_are_the_runs(writer: Writer) -> None:
    generate = writer.config.generate
    said = writer.generate("The", tokens=generate.tokens, temperature=generate.temperature, top_k=generate.top_k)
    assert writer.generate("The") == said
    greedy = Writer(replace(writer.config, {"generate.temperature": 0.0}), writer.model, writer.tokenizer)
    assert greedy.generate("The", seed=1) == writer.generate("The", temperature=0.0)


def test_end_of_text_ends_and_is_not_written(tmp_path: Path) -> None:
    """A text of many short documents: the model soon learns to end."""
    (tmp_path / "mytext.txt").write_text("\n<|endoftext|>\n".join(["a"] * 400))
    run, _ = train_small(small_config(tmp_path, optimizer__lr="0.05", train__steps="60", evaluate__every="60"))
    (sample,) = load(run.folder).samples(["a"], temperature=0.0)
    assert (sample.text, sample.tokens, sample.finish) == ("", 1, "end")


def test_a_classifier_cannot_write(writer: Writer) -> None:
    config = replace(writer.config, {"model.task": "classifier", "model.classes": 3, "data.labelled": True})
    with pytest.raises(UserError, match="this model is a classifier: it cannot write"):
        Writer(config, writer.model, writer.tokenizer).generate("x")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = copy_of_trained(tmp_path) / "runs" / "mine"
    best = Run(folder).best
    assert best
    (best.folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"is damaged: tokenizer\.json"):
        load(folder)
