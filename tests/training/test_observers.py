"""Those who watch: the log holds strict JSON a line, and the bar fits on one line of a terminal."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from lilliput.errors import UserError
from lilliput.runs import Run
from lilliput.training.events import Evaluated, Finished, Saved, Stepped
from lilliput.training.events import Tested as AtTheEnd  # pytest takes a class called Test... for tests
from lilliput.training.observers import ConsoleObserver, MetricsFile, clock
from lilliput.training.session import open_session
from small import small_config


def stepped(step: int, progress: float = 0.5, loss: float = 2.0, seconds: float = 60.0) -> Stepped:
    return Stepped(step, loss, 1e-3, 1.0, 1000 * step, progress, seconds, 12_345.6, None)


LANGUAGE = {"loss": 1.2345, "bits_per_byte": 0.6123, "accuracy": None, "tokens": 4096, "documents": None}
LABELS = {"loss": 0.4321, "perplexity": None, "bits_per_byte": None, "accuracy": 0.877, "tokens": 900, "documents": 81}
EVALUATED = Evaluated(step=250, whole=False, weights=250, floor=None, perplexity=3.4367, **LANGUAGE)  # type: ignore[arg-type]
TESTED = AtTheEnd(step=300, name="obama", weights=250, perplexity=3.4367, **LANGUAGE)  # type: ignore[arg-type]
JUDGED = Evaluated(step=250, whole=False, weights=250, floor=None, **LABELS)  # type: ignore[arg-type]
FINISHED = Finished(300, 300_000, 60.0, interrupted=False)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "mine", {}, overwrite=False)


# ---- the log


def test_every_so_many_steps_and_everything_else(run: Run) -> None:
    log = MetricsFile(run, every=10)
    for step in range(1, 26):
        log(stepped(step, progress=step / 25))
        if step == 20:
            log(Saved(20, "step-000020"))
            log(EVALUATED)
    log(TESTED)
    log(FINISHED)
    log.close()
    lines = run.metrics()
    assert [(event["event"], event["step"]) for event in lines] == [
        ("step", 10),
        ("step", 20),
        ("saved", 20),
        ("evaluation", 250),
        ("step", 25),  # the last, whatever its number
        ("test", 300),
        ("finished", 300),
    ]
    assert lines[3] == {"event": "evaluation", **vars(EVALUATED)}
    assert lines[5] == {"event": "test", **vars(TESTED)}
    assert [list(event)[:2] for event in lines] == [["event", "step"]] * len(lines)


def test_a_line_is_there_before_the_next_event(run: Run) -> None:
    log = MetricsFile(run, every=1)
    for step in (1, 2, 3):
        log(stepped(step))
        assert [json.loads(line)["step"] for line in run.metrics_path.read_text().splitlines()] == [*range(1, step + 1)]
    log.close()


def test_an_interrupted_run_has_not_finished(run: Run) -> None:
    log = MetricsFile(run, every=1)
    log(Finished(7, 7000, 1.0, interrupted=True))
    log.close()
    assert run.metrics() == []


def test_a_log_that_cannot_be_opened(run: Run) -> None:
    run.metrics_path.mkdir()
    with pytest.raises(UserError, match=r"cannot write metrics\.jsonl"):
        MetricsFile(run, every=1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_is_told(run: Run) -> None:
    run.metrics_path.symlink_to("/dev/full")
    log = MetricsFile(run, every=1)
    with pytest.raises(UserError, match="the disk is full"):
        log(stepped(1))
    # What is still in the buffer cannot be written either: closing tells the same, and no more.
    with pytest.raises(OSError, match="No space"):
        log.close()


# ---- the console


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)


def frames(console: Console) -> list[str]:
    """What stood on the terminal's lines, one after the other, without the codes that move the cursor."""
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


def test_nothing_breaks_at_80_columns() -> None:
    console = terminal(80)
    observer = ConsoleObserver(console, 2.0, lambda: "Once there was a fox.", sample_seconds=1e-9)
    observer(stepped(99_999))
    observer(dataclasses.replace(EVALUATED, step=99_999, perplexity=1234.56))
    observer(stepped(100_000, progress=1.0))
    observer.bar.refresh()
    observer.close()
    shown = frames(console)
    assert "step 99,999  validation loss 1.2345  perplexity 1,234.56  0.6123 bits/byte" in [s.rstrip() for s in shown]
    assert any(line.startswith("a sample after 99,999 steps ──") for line in shown)
    assert "Once there was a fox." in [line.rstrip() for line in shown]
    assert any(line.rstrip().endswith("100%  evaluating on the whole validation split") for line in shown)
    assert all(len(line) <= 80 for line in shown)


def test_without_a_terminal_there_are_lines_and_no_codes() -> None:
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
    assert first.startswith("step      1   50%  loss 2.000  1.443 bits/byte  12,346 tokens/s  lr 1.00e-03")
    assert second.startswith("step    250  validation loss 1.2345")


def test_a_classifier_has_an_accuracy_and_no_bits() -> None:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    observer = ConsoleObserver(console, bytes_per_prediction=None)
    for event in (stepped(1), JUDGED, TESTED, FINISHED):
        observer(event)
    observer.close()
    assert isinstance(console.file, io.StringIO)
    first, second = [line for line in console.file.getvalue().splitlines() if line]
    assert first.startswith("step      1   50%  loss 2.000  12,346 tokens/s  lr 1.00e-03")
    assert second == "step    250  validation loss 0.4321  accuracy 87.7%"


def test_the_loss_shown_is_a_mean_that_begins_with_the_first() -> None:
    observer = ConsoleObserver(Console(file=io.StringIO()), bytes_per_prediction=2.0)
    observer(stepped(1, loss=6.0))
    assert observer.smooth == 6.0
    observer(stepped(2, loss=4.0))
    assert observer.smooth == pytest.approx(5.9)
    observer.close()


def test_what_a_sample_holds_is_no_markup(tmp_path: Path) -> None:
    console = terminal(80)
    observer = ConsoleObserver(console, 2.0, lambda: "[bold]not[/] markup [/wrong]", sample_seconds=1e-9)
    observer(stepped(1))
    observer.close()
    assert "[bold]not[/] markup [/wrong]" in [line.rstrip() for line in frames(console)]


def test_a_real_run_is_watched_from_end_to_end(tmp_path: Path) -> None:
    console = terminal(80)
    with open_session(small_config(tmp_path)) as session:
        observer = ConsoleObserver(console, session.trainer.train.bytes_per_prediction)
        list(session.events([observer]))
    assert sum("validation" in line and "step" in line for line in frames(console)) >= 3
    assert all(len(line) <= 80 for line in frames(console))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00"), (36061, "10:01:01")]
)
def test_times_as_a_clock_shows_them(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown
