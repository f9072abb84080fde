"""`Run`: text, tokens, evaluation, attention, labels, log and report of a run."""

from __future__ import annotations

import html
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

import lilliput
from helpers.python_examples import copy_of_workspace, workspace
from helpers.small_runs import lilliput as command
from helpers.user_errors import refused
from lilliput.decoding.writer import load as load_writer
from lilliput.evaluation.evaluate import evaluate
from lilliput.interpret import capture_text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = copy_of_workspace(tmp_path)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run() -> lilliput.Run:
    return lilliput.load(workspace() / "runs" / "demo", device="cpu")


def test_the_fields_of_a_run(run: lilliput.Run) -> None:
    assert (run.name, run.finished, run.state, run.steps) == ("demo", True, "finished", 8)
    assert run.config.model.layers == 2 and run.folder == workspace() / "runs" / "demo"
    assert repr(run).startswith(f"Run({str(run.folder)!r}, finished, 8 steps, loss ") and len(repr(run)) < 160
    assert "writer" not in vars(run), "the model is loaded when it is first needed"
    assert run.checkpoint.name == "step-000008"


def test_a_checkpoint_is_a_run(run: lilliput.Run) -> None:
    folder = run.folder / "checkpoints" / "step-000006"
    found = lilliput.load(folder, device="cpu")
    assert (found.checkpoint.step, found.name, found.steps) == (6, "demo", 8)
    assert found.generate("A bee", tokens=8, seed=1) == load_writer(folder, "cpu").generate("A bee", tokens=8, seed=1)
    assert found.metrics[-1] == run.metrics[-1]


def test_a_run_is_found_by_name_folder_or_itself(here: Path) -> None:
    assert lilliput.load("demo").folder == lilliput.load(Path("runs/demo")).folder == Path("runs/demo")
    run = lilliput.load("demo")
    assert lilliput.load(run) is run
    assert [one.name for one in lilliput.runs()] == ["demo", "said"]
    assert lilliput.runs("nowhere") == []


def test_generated_text_is_that_of_the_writer(run: lilliput.Run) -> None:
    writer = load_writer(run.folder, "cpu")
    assert run.generate("Once", tokens=9, seed=3) == writer.generate("Once", tokens=9, seed=3)
    assert run.generate("Once", temperature=0, tokens=9) == writer.generate("Once", tokens=9, temperature=0.0)
    by_name = {"tokens": 9, "generate.top_p": 0.5}
    expected = run.generate("Once", tokens=9, top_p=0.5, seed=3)
    assert run.generate("Once", settings=by_name, seed=3) == expected
    complete = lilliput.GenerateSettings(tokens=9, top_p=0.5, engine="torch")
    assert run.generate("Once", settings=complete, seed=3) == expected
    assert run.generate(tokens=9, seed=3) == run.generate("", tokens=9, seed=3), "the default is generate.prompt"
    first = run.generate("Once", tokens=9, seed=3)
    assert run.generate("Once", tokens=9, seed=3, stop=first[2]) == first[: first.index(first[2])]


def test_streamed_tokens_have_probabilities(run: lilliput.Run) -> None:
    pieces = list(run.stream("Once", tokens=6, temperature=0))
    assert "".join(piece.text for piece in pieces) == run.generate("Once", tokens=6, temperature=0)
    assert [piece.probability for piece in pieces] == [math.exp(piece.logprob) for piece in pieces]
    alternatives = run.writer.write(["Once"], 0, run.writer.checked(None, {"tokens": 6, "temperature": 0.0}), None, 1)
    for piece, other in zip(pieces, alternatives, strict=True):  # greedy: the most likely token
        assert piece.id == other.alternatives[0].id
        assert piece.probability == pytest.approx(math.exp(other.alternatives[0].logprob))


def test_a_conflicting_setting_of_the_run_is_dropped(here: Path) -> None:
    config = json.loads(Path("runs/demo/config.json").read_text())
    config["generate"]["top_k"] = 5
    Path("runs/demo/config.json").write_text(json.dumps(config))
    run = lilliput.load("demo")
    assert run.generate("Once", tokens=4, temperature=0) == run.generate("Once", tokens=4, temperature=0, top_k=None)


@pytest.mark.parametrize(
    ("arguments", "code", "setting"),
    [
        ({"top_p": 2}, "setting.value", "generate.top_p"),
        ({"tokens": 0}, "setting.value", "generate.tokens"),
        ({"top_p": 0.5, "beams": 2}, "setting.conflict", "generate.top_p"),
        ({"top_q": 0.5}, "argument.unknown", "top_q"),
        ({"seed": -1}, "argument.value", "seed"),
        ({"prompt": 3}, "argument.value", "prompt"),
        ({"settings": {"topp": 0.5}}, "argument.unknown", "topp"),
        ({"settings": {"generate.topp": 0.5}}, "setting.unknown", "generate.topp"),
        ({"settings": {"top_p": 0.5}, "top_p": 0.4}, "argument.conflict", "generate.top_p"),
        ({"settings": [1]}, "argument.value", "settings"),
    ],
)
def test_wrong_arguments_of_generate(run: lilliput.Run, arguments: dict[str, object], code: str, setting: str) -> None:
    for call in (run.generate, run.stream):
        error = refused(lambda call=call: call(**arguments))  # type: ignore[misc]
        assert (error.code, error.setting) == (code, setting)
        assert "--" not in error.fix and "lilliput generate" not in error.fix


def test_fixes_name_arguments(run: lilliput.Run) -> None:
    assert refused(lambda: run.generate(top_p=2)).fix == "set top_p to a number of at most 1 or none"
    assert refused(lambda: run.generate(seed=-1)).fix == "set seed to a number of at least 0"
    assert refused(lambda: run.generate(max_new_tokens=3)).fix == "use tokens"  # type: ignore[call-arg]
    assert refused(lambda: run.evaluate(baseline=True)).fix == "use baselines"  # type: ignore[call-arg]
    assert refused(lambda: run.attention("Once", layer=[0])).fix == "use layers"  # type: ignore[call-arg]


def test_an_evaluation_has_the_values_of_the_command(run: lilliput.Run) -> None:
    result, expected = run.evaluate(baselines=True, progress=False), evaluate(run.folder, baselines=True, device="cpu")
    assert result.to_dict() == json.loads(json.dumps(expected))
    assert (result.loss, result.perplexity, result.bits_per_byte) == tuple(
        expected[name] for name in ("loss", "perplexity", "bits_per_byte")
    )
    assert result.accuracy is None and result.tokens == result["tokens"] == expected["tokens"]
    assert result.interval["loss"] == expected["interval"]["loss"]
    assert [row["name"] for row in result.baselines] == [row["name"] for row in expected["baselines"]]
    assert len(result) == len(expected) and set(result) == set(expected)
    assert not hasattr(result, "bleu")
    assert repr(result) == (
        f"EvaluationResult(demo on validation: loss {result.loss:.4f}, perplexity {result.perplexity:.4f}, "
        f"bits_per_byte {result.bits_per_byte:.4f})"
    )


def test_an_evaluation_prints_the_tables_of_the_command(run: lilliput.Run) -> None:
    result = run.evaluate(baselines=True, progress=False)
    printed = command("evaluate", str(run.folder), "--baselines", "--device", "cpu").out
    assert sorted(str(result).split()) == sorted(printed.split()), "up to the width of the lines"
    assert max(map(len, str(result).splitlines())) <= 100
    page = result._repr_html_()
    assert f'<td style="text-align: right">{result.loss:.4f}</td>' in page and "Kneser-Ney, order 2" in page


def test_other_documents_and_continuations(here: Path) -> None:
    run = lilliput.load("demo", device="cpu")
    other = run.evaluate(Path("other.txt"), csv="documents.csv", progress=False)
    text = Path("other.txt").read_text("utf-8").replace("\n<|endoftext|>\n", "")
    assert other["bytes"] == len(text.encode()) and Path("documents.csv").is_file()
    task = {"prompts": 4, "tokens": 4, "prompt_tokens": 0}
    found = run.evaluate("train", overlap=task, temperature=0, progress=False)
    assert (found.overlap["task"]["prompts"], found.overlap["generate"]["temperature"]) == (4, 0.0)
    assert "set prompt_tokens above 0" in str(found), "an argument, not a flag"


@pytest.mark.parametrize(
    ("arguments", "code", "setting"),
    [
        ({"on": "nothing"}, "evaluation.set", "on"),
        ({"on": 3}, "argument.value", "on"),
        ({"stride": 0}, "setting.value", "stride"),
        ({"batch": 0}, "argument.value", "batch"),
        ({"top_p": 0.5}, "argument.conflict", "top_p"),
        ({"overlap": {"prompt": 2}}, "argument.value", "overlap"),
        ({"csv": "no/such/folder.csv"}, "file.not-written", "csv"),
    ],
)
def test_wrong_arguments_of_evaluate(run: lilliput.Run, arguments: dict[str, object], code: str, setting: str) -> None:
    error = refused(lambda: run.evaluate(progress=False, **arguments))  # type: ignore[arg-type]
    assert (error.code, error.setting) == (code, setting)


def test_attention_weights_are_arrays_and_a_page(run: lilliput.Run, tmp_path: Path) -> None:
    text = "The cat </script> sat."
    view, expected = run.attention(text), capture_text(load_writer(run.folder, "cpu"), text)
    assert view.tokens == list(expected.tokens) and view.text is None
    assert all(np.array_equal(one, other) for one, other in zip(view.weights, expected.weights, strict=True))
    assert repr(view) == f"AttentionView({len(view.tokens)} tokens, 2 layers, 2 heads)"
    assert len(view.heads()) == 4
    shown = view._repr_html_()
    assert shown.startswith('<iframe srcdoc="') and 'sandbox="allow-scripts"' in shown
    inside = shown.removeprefix('<iframe srcdoc="').partition('"')[0]
    assert "<" not in inside and html.unescape(inside) == view.html()
    assert view.save(tmp_path / "view.html").read_text("utf-8") == view.html()
    chosen = run.attention(text, layers=[1], heads=(0,))
    assert np.array_equal(chosen.weights[0], view.weights[1][:1])
    longer = run.attention("Once", generate=3, temperature=0)
    assert longer.text == run.generate("Once", tokens=3, temperature=0)


@pytest.mark.parametrize(
    ("arguments", "code", "setting"),
    [
        ({"layers": [9]}, "attention.selection", "layers"),
        ({"heads": "x"}, "argument.value", "heads"),
        ({"pad": True, "generate": 3}, "argument.conflict", "pad"),
        ({"top_p": 0.5}, "argument.conflict", "top_p"),
        ({"text": 3}, "argument.value", "text"),
        ({"generate": 0}, "argument.value", "generate"),
    ],
)
def test_wrong_arguments_of_attention(run: lilliput.Run, arguments: dict[str, object], code: str, setting: str) -> None:
    error = refused(lambda: run.attention(**{"text": "The cat", **arguments}))  # type: ignore[arg-type]
    assert (error.code, error.setting) == (code, setting)


def test_labels_have_probabilities(run: lilliput.Run) -> None:
    classifier = lilliput.load(workspace() / "runs" / "said", device="cpu")
    one = classifier.predict("honey wax clover")
    assert one.label == max(one.probabilities, key=lambda label: one.probabilities[label])
    assert one.probability == one.probabilities[one.label] and sum(one.probabilities.values()) == pytest.approx(1.0)
    many = classifier.predict(["honey wax clover", "<b>river</b>"])
    assert (len(many), many[0].label, many.labels) == (2, one.label, ["bear", "bee", "owl"])
    assert many[0].probability == pytest.approx(one.probability)
    assert [row["text"] for row in many.to_dict()["predictions"]] == ["honey wax clover", "<b>river</b>"]
    assert "&lt;b&gt;river" in many._repr_html_() and "<b>" not in many._repr_html_()
    assert f'<td style="text-align: right">{one.probability:.4f}</td>' in one._repr_html_()
    assert repr(one) == f"Prediction({one.label!r}, probability {one.probability:.4f})"
    assert lilliput.predict(classifier, "honey wax clover") == one
    assert classifier.evaluate(progress=False).accuracy is not None
    for text, code, setting in (("", "data.empty", "texts"), (3, "argument.value", "texts")):
        error = refused(lambda text=text: classifier.predict(text))  # type: ignore[misc]
        assert (error.code, error.setting) == (code, setting)
    error = refused(lambda: run.predict("honey"))
    assert (error.code, error.setting) == ("model.task", "model.task") and "lilliput generate" not in error.fix
    assert refused(lambda: classifier.generate("honey")).code == "model.task"


def test_metrics_are_the_rows_of_the_log(run: lilliput.Run) -> None:
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert list(run.metrics) == lines
    steps = run.metrics.select("step")
    assert [row["step"] for row in steps] == list(range(1, 9)) and steps[2:4][0] == steps[2]
    assert repr(steps) == "MetricRows(8 rows: 8 step)"


def test_the_plot_has_the_losses(run: lilliput.Run) -> None:
    figure = run.metrics.plot()
    raw, smooth, validation = figure.axes[0].lines
    assert list(raw.get_ydata()) == [row["loss"] for row in run.metrics.select("step")]
    checks = [row for row in run.metrics.select("evaluation") if not row["whole"]]
    assert list(validation.get_xdata()) == [row["step"] for row in checks]
    assert [line.get_label() for line in (smooth, validation)] == ["training", "validation"]
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert refused(lambda: run.metrics.select("saved").plot()).code == "run.no-metrics"


def test_a_data_frame_requires_pandas(run: lilliput.Run) -> None:
    if importlib.util.find_spec("pandas") is None:
        assert refused(run.metrics.to_pandas).code == "package.missing"
    else:
        frame = run.metrics.to_pandas()
        assert list(frame["event"]) == [row["event"] for row in run.metrics]


def test_a_report_is_shown_and_saved(here: Path) -> None:
    run = lilliput.load("demo", device="cpu")
    report = run.report()
    assert report.save("mine.html").read_text("utf-8") == report.html()
    assert Path("mine.md").is_file() and [*Path("mine-figures").glob("*.png")]
    assert report.save() == Path("runs/demo/report.html")
    shown = report._repr_html_()
    assert 'sandbox=""' in shown and "<h2>" not in shown and "&lt;h2&gt;Results" in shown
    error = refused(lambda: report.save("mine.txt"))
    assert (error.code, error.setting) == ("file.format", "path")


@pytest.mark.parametrize(
    ("path", "device", "code", "setting"),
    [
        ("dmo", "auto", "run.missing", "path"),
        ("demo", "tpu", "argument.value", "device"),
        (3, "auto", "argument.value", "path"),
    ],
)
def test_wrong_arguments_of_load(here: Path, path: str, device: str, code: str, setting: str) -> None:
    error = refused(lambda: lilliput.load(path, device))  # type: ignore[arg-type]
    assert (error.code, error.setting) == (code, setting)


def test_a_missing_run_has_a_fix_in_python(here: Path) -> None:
    assert refused(lambda: lilliput.load("dmo")).fix == "use demo"
    assert refused(lambda: lilliput.load("xyz")).fix == "use lilliput.runs() to list the runs"
