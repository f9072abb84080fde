"""Observers: the log has one strict JSON object per line, and the progress bar fits on one line."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from helpers.small_runs import small_config
from helpers.user_errors import refused
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import Evaluated, Finished, Saved, Stepped, Warned
from lilliput.training.events import Tested as AtTheEnd  # pytest takes a class called Test... for tests
from lilliput.training.observers import ConsoleObserver, MetricsFile, clock, format_tests
from lilliput.training.session import open_session


def stepped(step: int, progress: float = 0.5, loss: float = 2.0, seconds: float = 60.0) -> Stepped:
    return Stepped(
        step, loss, 1e-3, 1.0, 1000 * step, progress, seconds, 12_345.6, 812_000_000, False, False, share_of_peak=0.43
    )


LANGUAGE = {"loss": 1.2345, "bits_per_byte": 0.6123, "accuracy": None, "tokens": 4096, "documents": None}
LABELS = {"loss": 0.4321, "perplexity": None, "bits_per_byte": None, "accuracy": 0.877, "tokens": 900, "documents": 81}
EVALUATED = Evaluated(step=250, whole=False, weights=250, floor=None, perplexity=3.4367, **LANGUAGE)  # type: ignore[arg-type]
TESTED = AtTheEnd(step=300, name="obama", weights=250, perplexity=3.4367, **LANGUAGE)  # type: ignore[arg-type]
CLASSIFIED = Evaluated(step=250, whole=False, weights=250, floor=None, **LABELS)  # type: ignore[arg-type]
FINISHED = Finished(300, 300_000, 60.0, interrupted=False, early=False)
WARNED = Warned(260, "spike", "the loss jumped [from 2] to 9: look [/at] it", "loss spike")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "mine", {}, overwrite=False)


# ---- the log


def test_the_log_has_every_nth_step_and_all_other_events(run: RunFolder) -> None:
    log = MetricsFile(run, every=10)
    for step in range(1, 26):
        log(stepped(step, progress=step / 25))
        if step == 20:
            log(Saved(20, "step-000020"))
            log(EVALUATED)
            log(WARNED)
    log(TESTED)
    log(FINISHED)
    log.close()
    lines = run.metrics()
    assert [(event["event"], event["step"]) for event in lines] == [
        ("step", 10),
        ("step", 20),
        ("saved", 20),
        ("evaluation", 250),
        ("warning", 260),
        ("step", 25),  # the last step is always logged
        ("test", 300),
        ("finished", 300),
    ]
    assert lines[3] == {"event": "evaluation", **vars(EVALUATED)}
    assert lines[4] == {"event": "warning", **vars(WARNED)}
    assert lines[6] == {"event": "test", **vars(TESTED)}
    assert [list(event)[:2] for event in lines] == [["event", "step"]] * len(lines)


def test_a_line_is_written_before_the_next_event(run: RunFolder) -> None:
    log = MetricsFile(run, every=1)
    for step in (1, 2, 3):
        log(stepped(step))
        assert [json.loads(line)["step"] for line in run.metrics_path.read_text().splitlines()] == [*range(1, step + 1)]
    log.close()


def test_an_interrupted_run_has_not_finished(run: RunFolder) -> None:
    log = MetricsFile(run, every=1)
    log(Finished(7, 7000, 1.0, interrupted=True, early=False))
    log.close()
    assert run.metrics() == []


def test_a_log_that_cannot_be_opened_is_an_error(run: RunFolder) -> None:
    run.metrics_path.mkdir()
    assert "metrics.jsonl" in refused(lambda: MetricsFile(run, every=1)).what


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_is_an_error(run: RunFolder) -> None:
    run.metrics_path.symlink_to("/dev/full")
    log = MetricsFile(run, every=1)
    cause = refused(lambda: log(stepped(1))).__cause__
    assert isinstance(cause, OSError) and cause.errno == errno.ENOSPC
    # The buffer cannot be written either: closing raises the same error.
    with pytest.raises(OSError, match="No space"):
        log.close()


# ---- the console


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)


def frames(console: Console) -> list[str]:
    """Return all lines that the terminal has shown, without cursor codes."""
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for code in ("\x1b[2K", "\x1b[1A", "\x1b[?25l", "\x1b[?25h"):
        text = text.replace(code, "")
    return [line for line in text.replace("\r", "\n").split("\n") if line.strip()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_is_one_line(width: int) -> None:
    console = terminal(width)
    observer = ConsoleObserver(console, bytes_per_prediction=2.0)
    observer(stepped(123_456, seconds=3000.0))
    observer.bar.refresh()
    observer.close()
    shown = frames(console)
    assert all(len(line) <= width for line in shown)
    if width >= 80:
        assert any(
            line.startswith("step 123,456 ")
            and line.rstrip().endswith(" 50%  loss 2.000  1.443 bits/byte  12,346 tokens/s  50:00 left")
            for line in shown
        )


def test_all_lines_fit_80_columns() -> None:
    console = terminal(80)
    observer = ConsoleObserver(console, 2.0)
    worst = dataclasses.replace(stepped(99_999, loss=10.234), lr=2.1e-5, gradient_norm=123.4, share_of_peak=1.0)
    observer(dataclasses.replace(worst, memory_bytes=12_340_000_000))
    observer(dataclasses.replace(EVALUATED, step=99_999, perplexity=1234.56))
    observer.show_sample(99_999, "Once there was a fox.")
    observer(stepped(100_000, progress=1.0))
    observer.bar.refresh()
    observer.close()
    shown = [line.rstrip() for line in frames(console)]
    training = shown.index("step 99,999  training   loss 10.234  lr 2.1e-05  norm 123  100% of peak  12.3 GB")
    validation = shown.index("step 99,999  validation loss 1.2345  perplexity 1,234.56  0.6123 bits/byte")
    assert training < validation
    assert any(line.startswith("a sample after 99,999 steps ──") for line in shown)
    assert "Once there was a fox." in shown
    assert any(line.endswith("100%  evaluating on the whole validation split") for line in shown)
    assert all(len(line) <= 80 for line in shown)


def test_without_a_terminal_it_prints_lines_without_codes() -> None:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    observer = ConsoleObserver(console, bytes_per_prediction=2.0)
    for step in (1, 2, 3):
        observer(stepped(step))
    observer(EVALUATED)
    observer(FINISHED)
    observer.close()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b" not in text
    first, second = [line for line in text.splitlines() if line]
    assert first == (
        "step      1   50%  loss 2.000  1.443 bits/byte  lr 1.0e-03  gradient norm 1  12,346 tokens/s  43% of peak FLOP/s  "
        "812 MB  1:00 left"
    )
    assert second.startswith("step    250  training loss 2.000 (running mean)  validation loss 1.2345  perplexity 3.44")


def test_a_classifier_has_an_accuracy_and_no_bits() -> None:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    observer = ConsoleObserver(console, bytes_per_prediction=None)
    for event in (stepped(1), CLASSIFIED, TESTED, FINISHED):
        observer(event)
    observer.close()
    assert isinstance(console.file, io.StringIO)
    first, second = [line for line in console.file.getvalue().splitlines() if line]
    assert first.startswith("step      1   50%  loss 2.000  lr 1.0e-03  gradient norm 1  12,346 tokens/s  43% of peak")
    assert second == "step    250  training loss 2.000 (running mean)  validation loss 0.4321  accuracy 87.7%"


def test_the_training_loss_is_that_of_the_sample_if_there_is_one() -> None:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    observer = ConsoleObserver(console, bytes_per_prediction=None)
    sample = dataclasses.replace(TESTED, loss=1.5)
    observer(dataclasses.replace(EVALUATED, step=0, training=sample, tests={"obama": TESTED, "wbush": sample}))
    observer.close()
    assert isinstance(console.file, io.StringIO)
    first, second = [line for line in console.file.getvalue().splitlines() if line]
    assert first.startswith("step      0  training loss 1.500  validation loss 1.2345")
    perplexity = f"{TESTED.perplexity:,.2f}"
    assert second == f"step      0  tests      perplexity  obama {perplexity}  wbush {perplexity}"


def test_tests_of_a_classifier_show_the_accuracy() -> None:
    assert (
        format_tests({"test": dataclasses.replace(TESTED, perplexity=None, accuracy=0.875)}) == "accuracy  test 87.5%"
    )


def test_the_shown_loss_is_a_mean_that_starts_with_the_first() -> None:
    observer = ConsoleObserver(Console(file=io.StringIO()), bytes_per_prediction=2.0)
    observer(stepped(1, loss=6.0))
    assert observer.smooth == 6.0
    observer(stepped(2, loss=4.0))
    assert observer.smooth == pytest.approx(5.9)
    observer.close()


def test_a_sample_is_not_parsed_as_markup(tmp_path: Path) -> None:
    console = terminal(80)
    observer = ConsoleObserver(console, 2.0)
    observer.show_sample(1, "[bold]not[/] markup [/wrong]")
    observer.close()
    assert "[bold]not[/] markup [/wrong]" in [line.rstrip() for line in frames(console)]


def test_warnings_are_yellow_and_not_parsed_as_markup() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard", legacy_windows=False)
    observer = ConsoleObserver(console, 2.0)
    observer(WARNED)
    observer.close()
    assert isinstance(console.file, io.StringIO)
    text = "\x1b[1;33mwarning at step 260: \x1b[0m\x1b[33mthe loss jumped [from 2] to 9: look [/at] it\x1b[0m"
    assert text in console.file.getvalue()


def test_missing_metrics_are_omitted() -> None:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    observer = ConsoleObserver(console, bytes_per_prediction=None)
    bare = dataclasses.replace(stepped(1), gradient_norm=None, skipped=True, share_of_peak=None, memory_bytes=None)
    observer(bare)
    observer(dataclasses.replace(FINISHED, early=True))
    observer(dataclasses.replace(FINISHED, limited_at=0.625))
    observer.close()
    assert isinstance(console.file, io.StringIO)
    first, early, limited = [line for line in console.file.getvalue().splitlines() if line]
    assert first == "step      1   50%  loss 2.000  lr 1.0e-03  overflow  12,346 tokens/s  1:00 left"
    assert early == "step    300  stopped early: validation loss no longer falls"
    assert limited.startswith("step    300  ended by the time limit") and "62%" in limited


def test_the_console_of_a_real_run(tmp_path: Path) -> None:
    console = terminal(80)
    with open_session(small_config(tmp_path)) as session:
        observer = ConsoleObserver(console, session.trainer.train.bytes_per_prediction)
        list(session.events([observer]))
    assert sum("validation" in line and "step" in line for line in frames(console)) >= 3
    assert all(len(line) <= 80 for line in frames(console))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00"), (36061, "10:01:01")]
)
def test_clock_format(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown
