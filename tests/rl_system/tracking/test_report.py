import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from launch.report import main
from rl_system.errors import UserError
from rl_system.tracking.drawing import smooth
from rl_system.tracking.history import read_history
from rl_system.tracking.report import write_report
from rl_system.tracking.summary import quarters, summarise
from tests.rl_system.tracking.runs import write_run


class Page(HTMLParser):
    """Titles of the figures, and every address that the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.captions: list[str] = []
        self.addresses: list[str] = []
        self._inside = False

    def handle_starttag(self, tag, attrs):
        self._inside = tag == "figcaption" or (self._inside and tag not in ("small", "svg"))
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data")]

    def handle_data(self, data):
        if self._inside:
            self.captions.append(data)
            self._inside = False


def read_page(path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


def test_the_report_shows_what_was_measured_and_loads_nothing_from_outside(tmp_path):
    page = read_page(write_report(write_run(tmp_path, "run", steps=12)))
    for title in ("Reward over time", "Reward over updates", "Success", "Staleness", "Idle and waiting",
                  "Prefix sharing", "Accelerators"):  # fmt: skip
        assert title in page.captions
    assert "Queue" not in page.captions  # never measured in this run
    assert all(address.startswith("#") for address in page.addresses)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_run_that_ended_early_still_has_a_report(tmp_path, steps):
    text = write_report(write_run(tmp_path, "run", steps)).read_text()
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    assert "Configuration" in text


def test_text_from_a_run_cannot_break_the_page(tmp_path):
    text = write_report(write_run(tmp_path, "run", steps=2)).read_text()
    assert "&lt;engine &amp; all&gt;" in text


def test_the_summary_says_before_and_after(tmp_path):
    summary = summarise(read_history(write_run(tmp_path, "run", steps=8)))
    assert summary["Reward, first → last quarter"] == "0.188 → 0.938"
    assert summary["Held-out success, before → after"] == "25% → 75%"
    assert summary["Largest staleness"] == "1 of 2 allowed"
    assert quarters(np.array([0.5])) == (0.5, 0.5)


def test_the_trailing_mean_agrees_with_a_loop():
    values = np.random.default_rng(0).normal(size=40)
    expected = [values[max(0, i - 4) : i + 1].mean() for i in range(40)]
    np.testing.assert_allclose(smooth(values), expected)


def test_runs_are_compared_in_one_figure(tmp_path, capsys):
    runs = [str(write_run(tmp_path, name, steps=5)) for name in ("first", "second")]
    assert main(["--compare", *runs, "--out", str(tmp_path / "curves.svg")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "curves.svg")
    root = ElementTree.parse(tmp_path / "curves.svg").getroot()
    assert {"first", "second"} <= {text for element in root.iter() if (text := element.text)}
    assert main(["--compare", *runs, "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_directory_that_is_no_run_is_refused_in_one_line(tmp_path, capsys):
    with pytest.raises(UserError, match="no run directory"):
        write_report(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "no run directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--out", "curves.pdf"], "end the name"), (["--out", "x.svg", "--metric", "reward/men"], "no metric")],
)
def test_a_comparison_that_cannot_be_drawn_is_refused(tmp_path, capsys, more, message):
    run = str(write_run(tmp_path, "run", steps=2))
    assert main(["--compare", run, *more]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_report_shows_every_decision_about_the_split_in_its_order_with_its_reason(tmp_path):
    directory = write_run(tmp_path, "run", steps=3)
    keep = {"split": [3, 1], "limit": "training", "gain": 0.3}
    events = [
        {"event": "allocation", "move": None, "best": [2, 2], "reason": "less than the margin", **keep},
        {"event": "rebalance_request", "accepted": False, "request": "7", "reason": "would leave 0"},
        {"event": "allocation", "move": "to_trainer", "best": [2, 2], "reason": "predicted faster", **keep},
        {"event": "switch_began", "change": "to trainer", "move": "to_trainer", "split": [3, 1], "reason": "so it goes"},
        {"event": "switch_finished", "change": "to trainer", "outcome": "returned", "split": [3, 1],
         "failures": ["no trainer came up"]},
        {"event": "switch_finished", "change": "new to rollout", "outcome": "moved", "split": [4, 1], "failures": []},
    ]  # fmt: skip
    with (directory / "events.jsonl").open("a") as file:
        for second, event in enumerate(events):
            file.write(json.dumps({"step": 3, "time/wall_clock_s": 40.0 + second, **event}) + "\n")
    path = write_report(directory)
    text = path.read_text()
    assert "Accelerators over time" in read_page(path).captions
    assert "Decisions about the split (6)" in text
    words = ["less than the margin", "refused", "would leave 0", "to_trainer", "predicted faster", "so it goes",
             "to trainer: returned", "no trainer came up", "new to rollout: moved"]  # fmt: skip
    places = [text.index(word, text.index("Decisions about the split")) for word in words]
    assert places == sorted(places)
    for word in ("moved", "came to nothing", "request refused", "another split was not worth it"):
        assert word in text[: text.index("Details")]


@pytest.mark.parametrize(("name", "heading"), [("tau2", "tau2 mock ·"), ("examples.guessing", "examples.guessing ·")])
def test_the_heading_tells_the_environment_that_was_trained_on(tmp_path, name, heading):
    directory = write_run(tmp_path, "run", 2)
    text = (directory / "config.yaml").read_text()
    assert "  name: tau2\n" in text
    (directory / "config.yaml").write_text(text.replace("  name: tau2\n", f"  name: {name}\n"))
    assert f" · {heading}" in write_report(directory).read_text()
