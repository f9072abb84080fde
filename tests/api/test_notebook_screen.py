"""Progress in a notebook: lines and a bar in one output, redrawn in place. IPython is not required here."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.small_runs import small_config
from lilliput.api.consoles import ProgressOutput, choose_output
from lilliput.api.notebook_screen import MOST_LINES, NotebookScreen
from lilliput.api.study_progress import showing
from lilliput.api.training_progress import follow
from lilliput.errors import UserError, UserErrors
from lilliput.settings.tree import Config
from lilliput.studies.job_plan import Training
from lilliput.studies.runner import Began, Failed, Going
from lilliput.training.session import open_session


class Pages(list[str]):
    """The HTML of each redraw."""

    def screen(self) -> NotebookScreen:
        return NotebookScreen(self.append)


def test_lines_are_escaped_and_limited() -> None:
    pages = Pages()
    screen = pages.screen()
    screen.console.print("<b>[red]one[/]")
    assert pages[-1].count("<pre") == 1 and "&lt;b&gt;one</pre>" in pages[-1]
    for number in range(MOST_LINES + 5):
        screen.console.print(f"line {number}")
    assert "one" not in pages[-1] and f"line {MOST_LINES + 4}</pre>" in pages[-1]


def test_a_bar_shows_its_share_until_it_is_cleared() -> None:
    pages = Pages()
    screen = pages.screen()
    screen.report("reading <x>", 25, 100)
    assert 'value="0.2500"' in pages[-1] and "reading &lt;x&gt;" in pages[-1]
    screen.drawn = 0.0
    screen.report("reading", 25, None)
    assert "<progress" in pages[-1] and "value=" not in pages[-1]
    screen.report("a note", 0, 0)
    assert "a note</pre>" in pages[-1]
    screen.clear_bar()
    assert "<progress" not in pages[-1]


def test_a_training_in_a_notebook(tmp_path: Path) -> None:
    pages = Pages()
    screen = pages.screen()
    output = ProgressOutput(screen.console, screen)
    with ExitStack() as stack:
        with output.reporting() as report:
            session = stack.enter_context(open_session(small_config(tmp_path), report=report))
        assert "<progress" in "".join(pages) and "<progress" not in pages[-1], "the bar of the data"
        assert follow(session, output, "again") is None
    samples = [row for row in session.run.metrics() if row["event"] == "evaluation" and not row["whole"]]
    training = [page for page in pages if "14,480 parameters" in page]
    shares = [float(share) for page in training for share in re.findall(r'value="([\d.]+)"', page)]
    assert shares and shares == sorted(shares) and shares[-1] <= 1.0
    assert "14,480 parameters" in pages[-1] and pages[-1].count("validation loss") == len(samples)
    assert "step      1" not in pages[-1], "the bar has the steps"
    assert "<progress" not in pages[-1]


def test_a_study_in_a_notebook() -> None:
    pages = Pages()
    screen = pages.screen()
    job = Training("full-1", 1, {}, Config())
    with showing(ProgressOutput(screen.console, screen)) as report:
        report(Began(job, 1, 2))
        report(Going(0.5, 120.0))
        assert 'value="0.5000"' in pages[-1] and "50%  2 min left" in pages[-1]
        report(Failed(job, ["error: <what>"]))
    assert "error: &lt;what&gt;" in pages[-1] and "<progress" not in pages[-1]


def test_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    silent = choose_output(False)
    with silent.reporting() as report:
        report("a note", 0, 0)
    silent.console.print("a line")
    assert capsys.readouterr() == ("", "")
    with choose_output(True).reporting() as report:
        report("a note", 0, 0)
    assert capsys.readouterr() == ("", "note: a note\n")
    assert choose_output(True, first=False).silent is False, "all processes decide alike whether samples are generated"


def test_notebooks_show_errors_without_a_traceback() -> None:
    error = UserError("what", "where", fix="use it", code="a.b")
    assert error._render_traceback_() == ["error: what", "  at: where", "  fix: use it"]
    assert UserErrors([error, error])._render_traceback_() == ["error: what (where); fix: use it"] * 2
