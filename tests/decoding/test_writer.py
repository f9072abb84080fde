"""Generation from a loaded checkpoint: prompts, seeds, batches, stop strings, beams, engines and errors."""

from __future__ import annotations

import copy
import logging
import shutil
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.small_runs import copy_of_trained, small_config, train_small, trained
from helpers.user_errors import refused
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.processors import Strategy
from lilliput.decoding.requests import Request
from lilliput.decoding.stop_strings import build_stop_check
from lilliput.decoding.stream import stream
from lilliput.decoding.writer import Alternative, Writer, collect, load
from lilliput.errors import UserError
from lilliput.kernels import code_cache as machine_code
from lilliput.kernels.decoding_pass.compiled_function import PASS
from lilliput.kernels.logit_statistics import STATISTICS
from lilliput.model.transformer import build_model
from lilliput.settings.loading import replace
from lilliput.settings.tree import GenerateSettings
from lilliput.storage.run_folders import RunFolder


@pytest.fixture(scope="module")
def writer() -> Writer:
    return load(trained() / "runs" / "mine", device="cpu")


def test_a_checkpoint_is_self_contained(tmp_path: Path, writer: Writer) -> None:
    best = RunFolder(trained() / "runs" / "mine").best
    assert best
    alone = Path(shutil.copytree(best.folder, tmp_path / "somewhere"))
    assert load(alone).generate("Once", seed=3) == writer.generate("Once", seed=3)


def test_load_returns_the_best_checkpoint_of_a_run(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, optimizer__lr="100", schedule__kind="constant"))
    assert run.best and run.last and run.best != run.last
    loaded = load(run.folder)
    assert loaded.checkpoint == run.best
    for name, tensor in run.best.load_model().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)


def test_the_data_type_is_that_of_the_run(writer: Writer) -> None:
    assert {weight.dtype for weight in writer.model.parameters()} == {torch.float64}
    assert not writer.model.training


def test_the_same_seed_gives_the_same_text(writer: Writer) -> None:
    assert writer.generate("The", seed=5) == writer.generate("The", seed=5)
    assert len({writer.generate("The", seed=seed, tokens=20) for seed in range(5)}) > 1


def test_greedy_needs_no_seed(writer: Writer) -> None:
    assert len({writer.generate("The", temperature=0.0, seed=seed) for seed in range(5)}) == 1
    assert writer.generate("The", temperature=3.0, top_k=1) == writer.generate("The", temperature=0.0)


def test_texts_alone_and_in_a_batch_are_equal(writer: Writer) -> None:
    """Row i uses seed + i. Tested in float64: in float32 the batch changes the rounding."""
    prompts = ["", "Once upon a time", "é", "x" * 100, "The"]
    together = writer.samples(prompts, seed=10, settings=changed_settings(writer, tokens=40))
    for row, prompt in enumerate(prompts):
        (alone,) = writer.samples([prompt], seed=10 + row, settings=changed_settings(writer, tokens=40))
        assert (alone.text, alone.tokens, alone.finish) == (
            together[row].text,
            together[row].tokens,
            together[row].finish,
        )
        assert alone.logprob == pytest.approx(together[row].logprob, abs=1e-9)


@pytest.mark.parametrize(
    "prompt", ["", " ", "\n", "a" * 31, "b" * 32, "c" * 33, "d" * 500, "日本語 🐝", "\udce9", "<|endoftext|>", "\x00"]
)
def test_any_prompt_is_continued(writer: Writer, prompt: str) -> None:
    (sample,) = writer.samples([prompt], seed=1, settings=changed_settings(writer, tokens=40))
    assert sample.prompt == prompt
    assert 1 <= sample.tokens <= 40
    assert sample.finish == ("length" if sample.tokens == 40 else "end")
    assert sample.logprob < 0
    sample.text.encode()


def test_an_empty_prompt_is_the_start_of_a_document(writer: Writer) -> None:
    end = writer.tokenizer.end
    assert writer.encode_prompt("") == [end]
    assert writer.encode_prompt("a<|endoftext|>")[0] == end
    assert end not in writer.encode_prompt("a<|endoftext|>")[1:], "text of a user cannot end a document"


@pytest.mark.parametrize("beams", [None, 2])
def test_a_prompt_may_be_ids(writer: Writer, beams: int | None) -> None:
    """Also an incomplete character, which is no valid text."""
    settings, ids = changed_settings(writer, tokens=20, beams=beams), writer.tokenizer.encode("Zoë saw")
    assert writer.samples([ids, "Zoë saw"], seed=4, settings=settings) == writer.samples(
        ["Zoë saw", ids], seed=4, settings=settings
    )
    half = ids[:3]
    assert writer.encode_prompt(half) == [writer.tokenizer.start, *half]
    (sample,) = writer.samples([half], seed=4, settings=settings)
    assert sample.prompt == writer.tokenizer.decode(half) == "Zo\ufffd"
    assert writer.encode_prompt(sample.prompt)[1:] != half
    ((best,),) = writer.beams([half], settings=changed_settings(writer, tokens=20, beams=2))
    assert best.prompt == sample.prompt


@pytest.fixture(scope="module")
def word_writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    folder = tmp_path_factory.mktemp("words")
    run, _ = train_small(small_config(folder, tokenizer__kind="word"))
    return load(run.folder, device="cpu")


def test_a_word_tokenizer_has_its_own_start_token(word_writer: Writer) -> None:
    tokenizer = word_writer.tokenizer
    assert tokenizer.start != tokenizer.end
    assert word_writer.encode_prompt("") == [tokenizer.start]
    assert word_writer.encode_prompt("The moon") == [tokenizer.start, *tokenizer.encode("The moon")]


@pytest.mark.parametrize("prompt", ["", "The moon", "The moon saw the", "A bee saw the sea."])
def test_words_are_separated_from_the_prompt(word_writer: Writer, prompt: str) -> None:
    """Prompt and text together equal the decoded text of all tokens."""
    tokenizer, encoded = word_writer.tokenizer, word_writer.encode_prompt(prompt)
    assert tokenizer.decode(encoded) == prompt
    for seed in range(6):
        request = Request(encoded, 7, Strategy(sample=True), seed)
        ids = [token.id for token in stream(TorchEngine(word_writer.model), [request], tokenizer.end)]
        (sample,) = word_writer.samples([prompt], seed, changed_settings(word_writer, tokens=7, temperature=1.0))
        assert sample.tokens == len(ids)
        assert prompt + sample.text == tokenizer.decode([*encoded, *ids])


def test_the_pieces_join_to_the_text(writer: Writer) -> None:
    """An incomplete character is held back; nothing is lost or repeated."""
    prompts, settings = ["", "Zoë", "Once"], changed_settings(writer, tokens=60, temperature=2.0)
    pieces = list(writer.write(prompts, seed=2, settings=settings))
    samples = collect(prompts, iter(pieces))
    assert samples == writer.samples(prompts, seed=2, settings=settings)
    for row, sample in enumerate(samples):
        own = [piece for piece in pieces if piece.row == row]
        assert [piece.finish for piece in own[:-1]] == [None] * (len(own) - 1)
        assert len(own) == sample.tokens
        assert sample.logprob == sum(piece.logprob for piece in own)


def changed_settings(writer: Writer, **changes: Any) -> GenerateSettings:
    changed = replace(writer.config, {f"generate.{name}": value for name, value in changes.items()})
    return changed.generate


def test_short_arguments_override_settings_and_settings_override_the_run(writer: Writer) -> None:
    settings = changed_settings(writer, temperature=0.0, tokens=5)
    (sample,) = writer.samples(["The"], seed=4, settings=settings)
    assert (sample.text, sample.tokens) == (writer.generate("The", temperature=0.0, tokens=5), 5)
    longer = writer.generate("The", tokens=9, seed=4, settings=settings)
    assert len(longer) > len(sample.text) and longer.startswith(sample.text[:-1])
    assert writer.generate("The", seed=4, settings=changed_settings(writer)) == writer.generate("The", seed=4)


@pytest.mark.parametrize("argument", [{"tokens": 0}, {"temperature": -1.0}, {"top_k": 0}])
def test_an_invalid_argument_names_its_setting(writer: Writer, argument: dict[str, Any]) -> None:
    (name,) = argument
    with pytest.raises(UserError, match=f"generate.{name}"):
        writer.generate("x", **argument)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_batch_size_does_not_change_the_texts(writer: Writer, batch: int) -> None:
    """Prompts wait for a free row; texts and their order are those of one large batch."""
    prompts = ["", "Once upon a time", "é", "x" * 100, "The", "The"]
    settings = changed_settings(writer, stop=["e", "q", "\x02"], temperature=1.5, tokens=30)
    together = writer.samples(prompts, seed=3, settings=settings)
    few = writer.samples(prompts, seed=3, settings=settings, batch=batch)
    for one, other in zip(together, few, strict=True):
        assert (one.prompt, one.text, one.tokens, one.finish) == (other.prompt, other.text, other.tokens, other.finish)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
    assert len({sample.tokens for sample in together}) > 2
    assert together[4].text != together[5].text


@pytest.mark.parametrize("kind", ["writer", "word_writer"])
def test_a_stop_string_ends_the_text_and_is_not_returned(kind: str, request: pytest.FixtureRequest) -> None:
    """For any two characters of a generated text: the text ends before their first occurrence."""
    writer: Writer = request.getfixturevalue(kind)
    (free,) = writer.samples(["A bee"], seed=1, settings=changed_settings(writer, tokens=30, temperature=1.0))
    for at in range(0, len(free.text) - 1, 3):
        stop = free.text[at : at + 2]
        settings = changed_settings(writer, stop=[stop], tokens=30, temperature=1.0)
        pieces = list(writer.write(["A bee"], seed=1, settings=settings))
        (sample,) = collect(["A bee"], pieces)
        assert sample.text == free.text[: free.text.index(stop)]
        assert sample.tokens <= free.tokens
        assert sample.finish == "stop"
        assert [piece.id for piece in pieces] == [piece.id for piece in free.pieces[: len(pieces)]]


def test_settings_are_checked(writer: Writer) -> None:
    settings = GenerateSettings(stop=("a", ""))
    with pytest.raises(UserError, match=r"generate\.stop"):
        writer.generate("x", settings=settings)
    with pytest.raises(UserError, match=r"generate\.stop"):
        writer.beams(["x"], settings=settings)


def test_temperature_0_turns_off_the_filters(writer: Writer) -> None:
    settings = changed_settings(writer, top_k=3, top_p=0.5, min_p=0.1, typical=0.4, final_temperature=2.0)
    assert writer.generate("The", temperature=0.0, settings=settings) == writer.generate("The", temperature=0.0)


def test_alternatives_on_request(writer: Writer) -> None:
    (plain,) = writer.samples(["The"], seed=2)
    (sample,) = writer.samples(["The"], seed=2, alternatives=3)
    assert [piece.id for piece in plain.pieces] == [piece.id for piece in sample.pieces]
    assert {piece.entropy for piece in plain.pieces} == {None}
    assert {piece.alternatives for piece in plain.pieces} == {()}
    for at, piece in enumerate(sample.pieces):
        ids = [*writer.encode_prompt("The"), *(before.id for before in sample.pieces[:at])]
        logprobs = writer.model(torch.tensor([ids]))[0, -1].log_softmax(dim=-1)
        best = logprobs.topk(3)
        assert piece.entropy == pytest.approx(-(logprobs.exp() * logprobs).sum().item(), abs=1e-9)
        for other, id_, logprob in zip(piece.alternatives, best.indices.tolist(), best.values.tolist(), strict=True):
            assert other == Alternative(id_, writer.tokenizer.token(id_), other.logprob)
            assert other.logprob == pytest.approx(logprob, abs=1e-9)
        assert piece.token == writer.tokenizer.token(piece.id)
        assert piece.logprob == pytest.approx(logprobs[piece.id].item(), abs=1e-9)


def test_a_writer_with_an_engine_follows_the_model(writer: Writer) -> None:
    """The weights may change, as in training."""
    model = copy.deepcopy(writer.model)
    live = Writer(writer.config, model, writer.tokenizer, engine=TorchEngine(model))
    assert live.generate("The", seed=1) == writer.generate("The", seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.neg_()
    fresh = Writer(writer.config, copy.deepcopy(model), writer.tokenizer)
    assert live.generate("The", seed=1) == fresh.generate("The", seed=1) != writer.generate("The", seed=1)


def test_an_engine_is_chosen_once_and_kept(writer: Writer) -> None:
    own, notes = Writer(writer.config, writer.model, writer.tokenizer), list[str]()
    assert own.chosen == {}, "no engine is built before the first request"
    first = own.engine_for(changed_settings(writer, engine="auto"), notes.append)
    assert len(notes) == 1 and "float64" in notes[0]
    assert own.engine_for(changed_settings(writer, engine="auto", top_k=3), notes.append) is first
    other = own.engine_for(changed_settings(writer, engine="torch"), notes.append)
    assert other is not first
    given = Writer(writer.config, writer.model, writer.tokenizer, engine=other)
    assert given.engine_for(changed_settings(writer), notes.append) is other
    assert len(notes) == 1, "the note is sent once"


def test_notes_on_the_engine_are_logged_by_default(
    writer: Writer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is logged as info; a compilation, which takes time, as a warning, which Python prints by default."""
    own = Writer(writer.config, writer.model, writer.tokenizer)
    with caplog.at_level(logging.INFO, logger="lilliput"):
        own.generate("The", settings=changed_settings(writer, engine="auto", tokens=1))
        own.generate("The", settings=changed_settings(writer, engine="auto", tokens=1))
    ((name, level, text),) = caplog.record_tuples
    assert (name, level) == ("lilliput", logging.INFO) and "float64" in text
    caplog.clear()
    single = Writer(writer.config, copy.deepcopy(writer.model).float(), writer.tokenizer)
    PASS.load()
    STATISTICS.load()  # no other compilation during the test
    place = PASS.cache_path()
    assert place is not None
    code = machine_code.read_code(place)
    monkeypatch.setattr(PASS, "address", 0)  # simulates an instant compilation
    monkeypatch.setattr(machine_code, "read_code", lambda path: None)
    monkeypatch.setattr(PASS, "compile", lambda: code)
    single.generate("The", settings=changed_settings(writer, engine="numba", tokens=1))
    assert [(level, text.split()[0]) for _, level, text in caplog.record_tuples if level >= logging.WARNING] == [
        (logging.WARNING, "compiling"),
        (logging.WARNING, "compiled"),
    ]


def test_a_repeated_prefix_is_not_read_again(writer: Writer) -> None:
    """Neither in the next call nor in the next prompt; the texts are the same as without cache."""
    config = replace(writer.config, {"model.context": 256})
    model = build_model(config.model, seed=3).double().eval()
    read: list[int] = []
    model.blocks[0].register_forward_pre_hook(lambda _, given: read.append(given[0].shape[0] * given[0].shape[1]))
    beginning = "The old bear went to the sea, and nobody saw the last of the apples. " * 2
    prompts = [beginning + end for end in ("", "A bee", "Zoë")]
    own = Writer(config, model, writer.tokenizer)
    own.generate(beginning, tokens=1)
    assert read == [len(beginning) + 1]
    texts = own.samples(prompts, seed=2, settings=changed_settings(writer, tokens=8))
    assert sum(read[1:]) < len(beginning)
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        live = Writer(config, model, writer.tokenizer, engine=TorchEngine(model))
        assert live.generate(prompt, tokens=8, seed=2 + row) == text.text


def test_beams_of_width_one_are_greedy(writer: Writer) -> None:
    prompts = ["", "The", "A bee saw", "x" * 40]
    greedy = writer.samples(prompts, settings=changed_settings(writer, temperature=0.0))
    for found, sample in zip(writer.beams(prompts), greedy, strict=True):
        (beam,) = found
        assert (beam.prompt, beam.text, beam.tokens, beam.finish) == (
            sample.prompt,
            sample.text,
            sample.tokens,
            sample.finish,
        )
        assert beam.logprob == pytest.approx(sample.logprob, abs=1e-9)


def test_write_returns_the_best_beam(writer: Writer) -> None:
    prompts, settings = ["", "The", "A bee saw"], changed_settings(writer, beams=4)
    found = list(writer.beams(prompts, settings=settings, n_best=3))
    assert [len(texts) for texts in found] == [3, 3, 3]
    for prompt, texts, sample in zip(prompts, found, writer.samples(prompts, settings=settings), strict=True):
        assert len({text.text for text in texts}) == 3
        scores = [text.score for text in texts]
        assert scores == sorted(scores, key=lambda score: -(score or 0.0))
        assert replace_field(texts[0], score=None) == replace_field(sample, pieces=texts[0].pieces)
        assert [piece.text for piece in sample.pieces] == [piece.text for piece in texts[0].pieces]
        for text in texts:
            assert text.prompt == prompt
            assert text.logprob == sum(piece.logprob for piece in text.pieces)
            assert text.score == pytest.approx(text.logprob / text.tokens, abs=1e-9)
    for texts, alone in zip(found, writer.beams(prompts, settings=settings, n_best=3, batch=1), strict=True):
        assert [text.text for text in texts] == [text.text for text in alone]


@pytest.mark.parametrize("kind", ["writer", "word_writer"])
def test_beams_stop_at_stop_strings(kind: str, request: pytest.FixtureRequest) -> None:
    """Also if the string begins with the space that separates words from the prompt."""
    writer: Writer = request.getfixturevalue(kind)
    (free,) = writer.samples(["A bee"], settings=changed_settings(writer, temperature=0.0))
    settings = changed_settings(writer, beams=3, stop=[free.text[:2], "e", " t"])
    finishes = set[str]()
    for texts in writer.beams(["The", "A bee"], settings=settings, n_best=3):
        for text in texts:
            ids = [piece.id for piece in text.pieces]
            stopped = build_stop_check(writer.tokenizer, settings.stop)(writer.encode_prompt(text.prompt), ids)
            assert stopped == (text.text, text.finish == "stop")
            assert not any(stop in text.text for stop in settings.stop)
            finishes.add(text.finish)
        assert len({text.text for text in texts}) == len(texts) == 3, "each text is returned once"
    assert "stop" in finishes
    one = changed_settings(writer, beams=1, stop=[free.text[:2]])
    (stopped_at_once,) = writer.samples(["A bee"], settings=one)
    assert (stopped_at_once.text, stopped_at_once.finish) == ("", "stop")


def test_sampled_beams_depend_on_the_seed(writer: Writer) -> None:
    settings = changed_settings(writer, beams=3, sample_beams=True, temperature=1.0)
    texts = {seed: list(writer.beams(["The", "The"], seed, settings, batch)) for seed, batch in ((1, None), (2, 1))}
    assert [text.text for text in texts[1][1]] == [text.text for text in texts[2][0]]
    assert [text.text for text in texts[1][0]] != [text.text for text in texts[1][1]]


@pytest.mark.parametrize(("batch", "rows"), [(None, 12), (12, 12), (8, 8), (7, 4), (4, 4), (1, 4)])
def test_the_batch_counts_beams(writer: Writer, batch: int | None, rows: int) -> None:
    """`batch` limits the rows per pass; the beams of a prompt stay together. A search runs when its result is requested."""
    most: list[int] = []
    hook = writer.model.blocks[0].register_forward_pre_hook(lambda _, given: most.append(given[0].shape[0]))
    try:
        found = writer.beams(
            ["The", "A bee", "Once"], settings=changed_settings(writer, beams=4, tokens=4), batch=batch
        )
        assert most == []
        assert len(next(found)) == 1
        assert max(most) == rows
        assert len(list(found)) == 2
        assert max(most) == rows
    finally:
        hook.remove()


@pytest.mark.parametrize("beams", [None, 2])
def test_conflicting_settings_raise_before_the_first_token(writer: Writer, beams: int | None) -> None:
    settings = changed_settings(writer, beams=beams, tokens=2, forced_words=["the moon and the sea"])
    for call in (writer.write, writer.beams):
        error = refused(lambda call=call: call(["x"], settings=settings))  # type: ignore[misc]
        assert (error.code, error.setting) == ("setting.conflict", "generate.forced_words")
    assert refused(lambda: writer.request("x", settings)).setting == "generate.forced_words"


def test_prompts_must_be_a_list(writer: Writer) -> None:
    for call in (writer.samples, writer.write, writer.beams):
        assert refused(lambda call=call: call("Once")).code == "request.invalid"  # type: ignore[misc]


def test_an_unsupported_engine_raises_before_the_first_token(writer: Writer) -> None:
    for call, beams in ((writer.write, None), (writer.write, 2), (writer.beams, 2)):
        settings = changed_settings(writer, engine="numba", beams=beams)
        error = refused(lambda call=call, settings=settings: call(["x"], settings=settings))  # type: ignore[misc]
        assert (error.code, error.setting) == ("model.unsupported", "generate.engine")
        assert refused(lambda settings=settings: writer.request("x", settings)).code == "model.unsupported"  # type: ignore[misc]


def test_counts_below_one_are_errors(writer: Writer) -> None:
    for call, argument in (
        (writer.write, {"batch": 0}),
        (writer.samples, {"batch": -1}),
        (writer.write, {"alternatives": 0}),
        (writer.samples, {"alternatives": -1}),
        (writer.beams, {"batch": 0}),
        (writer.beams, {"n_best": 0}),
    ):
        ((name, count),) = argument.items()
        error = refused(lambda call=call, argument=argument: call(["x"], **argument))  # type: ignore[misc]
        assert error.code == "request.invalid" and name in error.what and str(count) in error.what


def test_n_best_above_the_beam_width_is_an_error(writer: Writer) -> None:
    error = refused(lambda: writer.beams(["x"], settings=changed_settings(writer, beams=2), n_best=3))
    assert (error.code, error.setting) == ("request.invalid", "generate.beams")


def test_alternatives_with_beams_are_an_error(writer: Writer) -> None:
    error = refused(lambda: writer.samples(["x"], settings=changed_settings(writer, beams=2), alternatives=1))
    assert (error.code, error.setting) == ("request.invalid", "generate.beams")


@pytest.mark.parametrize("id_", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_an_error(writer: Writer, id_: int) -> None:
    error = refused(lambda: writer.request([1, id_, 2]))
    assert error.code == "prompt.invalid" and str(id_) in error.what


def test_defaults_are_those_of_the_run(writer: Writer) -> None:
    generate = writer.config.generate
    explicit = writer.generate("The", tokens=generate.tokens, temperature=generate.temperature, top_k=generate.top_k)
    assert writer.generate("The") == explicit
    greedy = Writer(replace(writer.config, {"generate.temperature": 0.0}), writer.model, writer.tokenizer)
    assert greedy.generate("The", seed=1) == writer.generate("The", temperature=0.0)


def test_end_of_text_ends_the_text_and_is_not_returned(tmp_path: Path) -> None:
    """Trained on many short documents, the model soon learns to end."""
    (tmp_path / "mytext.txt").write_text("\n<|endoftext|>\n".join(["a"] * 400))
    run, _ = train_small(small_config(tmp_path, optimizer__lr="0.05", train__steps="60", evaluate__every="60"))
    (sample,) = load(run.folder).samples(["a"], settings=GenerateSettings(temperature=0.0))
    assert (sample.text, sample.tokens, sample.finish) == ("", 1, "end")


def test_a_classifier_cannot_generate(writer: Writer) -> None:
    config = replace(writer.config, {"model.task": "classifier", "model.classes": 3, "data.labelled": True})
    error = refused(lambda: Writer(config, writer.model, writer.tokenizer).generate("x"))
    assert (error.code, error.setting) == ("model.task", "model.task")


def test_a_damaged_checkpoint_is_an_error(tmp_path: Path) -> None:
    folder = copy_of_trained(tmp_path) / "runs" / "mine"
    best = RunFolder(folder).best
    assert best
    (best.folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load(folder)
