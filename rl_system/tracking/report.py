"""The report of a run: one HTML file that holds everything it shows and opens without a network."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

import yaml

from rl_system.config.environment import TAU2, label_of
from rl_system.tracking.charts import CHARTS, Chart
from rl_system.tracking.events import TRAINED
from rl_system.tracking.history import History, read_history
from rl_system.tracking.names import describe
from rl_system.tracking.remarks import remarks
from rl_system.tracking.summary import summarise
from rl_system.tracking.tracker import EVALUATION

SHOWN_EVENTS = 200
"""Latest events that the page lists."""

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1e293b; background: #f8fafc; margin: 0; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0; }
h2 { font-size: 18px; margin: 40px 0 12px; }
.where { color: #64748b; margin: 2px 0 24px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 10px; }
.tile, figure, details { background: #fff; border: 1px solid #e2e8f0; border-radius: 8px; }
.tile { padding: 10px 14px; }
.tile b { display: block; font-size: 19px; }
.tile span { color: #64748b; font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(500px, 100%), 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 14px; }
figcaption { font-weight: 600; }
figcaption small { display: block; font-weight: 400; color: #64748b; }
figure svg { width: 100%; height: auto; }
details { padding: 10px 14px; margin-top: 12px; overflow-x: auto; }
summary { cursor: pointer; font-weight: 600; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #f1f5f9; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.remarks { background: #fffbeb; border: 1px solid #fde68a; border-radius: 8px; margin: 0; padding: 10px 14px 10px 30px; }
pre { font-size: 12.5px; line-height: 1.4; }
"""


def write_report(directory: Path) -> Path:
    """Write `directory`/report.html from what the run left there, and return its path. UserError where it is no run.

    The file is complete or the old one: it is written beside and moved into place.
    """
    history = read_history(directory)
    path = history.directory / "report.html"
    scratch = path.with_name("report.html.new")
    scratch.write_text(render(history), encoding="utf-8")
    os.replace(scratch, path)
    return path


def render(history: History) -> str:
    """The whole page."""
    name = html.escape(history.name)
    parts = [
        f"<h1>{name}</h1>",
        f'<p class="where">{html.escape(_what(history.config))}</p>',
        _tiles(summarise(history)),
        _remarks(remarks(history)),
        *(_section(title, charts, history) for title, charts in CHARTS.items()),
        "<h2>Details</h2>",
        _steps(history),
        _decisions(history.events),
        _events(history.events),
        _metrics(history),
        _config(history.config),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _what(config: dict[str, Any]) -> str:
    """What was trained, on what, how: one line."""

    def get(section: str, key: str) -> Any:
        return config.get(section, {}).get(key)

    environment = label_of(get("environment", "name") or TAU2, get("environment", "domain"))
    words = [get("model", "path"), environment, get("algorithm", "advantage"), get("algorithm", "objective")]
    return " · ".join(str(word) for word in words if word)


def _tiles(summary: dict[str, str]) -> str:
    tiles = (
        f'<div class="tile"><span>{html.escape(headline)}</span><b>{html.escape(text)}</b></div>'
        for headline, text in summary.items()
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _remarks(texts: list[str]) -> str:
    if not texts:
        return ""
    return f'<h2>Remarks</h2><ul class="remarks">{"".join(f"<li>{html.escape(text)}</li>" for text in texts)}</ul>'


def _section(title: str, charts: list[Chart], history: History) -> str:
    figures = [
        f"<figure><figcaption>{html.escape(chart.title)}<small>{html.escape(chart.reading)}</small></figcaption>"
        f"{svg}</figure>"
        for chart in charts
        if (svg := chart.render(history)) is not None
    ]
    return f'<h2>{html.escape(title)}</h2><div class="charts">{"".join(figures)}</div>' if figures else ""


STEP_COLUMNS = {
    "step": "step",
    "time/wall_clock_s": "seconds",
    "reward/mean": "reward",
    "reward/success_rate": "success",
    "reward/dropped_groups": "dropped groups",
    "off_policy/staleness_mean": "staleness",
    "train/grad_norm": "gradient norm",
    "train/clip_fraction": "clipped",
    "tree/compression": "sharing",
    "rollout/tokens_per_s": "sampled tokens/s",
    "perf/train_tokens_per_s": "trained tokens/s",
}


def _steps(history: History) -> str:
    columns = {name: title for name, title in STEP_COLUMNS.items() if name in history.names()}
    rows = [[_number(line.get(name)) for name in columns] for line in history.steps]
    return _details("Steps", _table(list(columns.values()), rows, numeric=True))


def _events(events: list[dict[str, Any]]) -> str:
    rows = []
    events = [event for event in events if event["event"] != TRAINED]  # one a step, and nothing to read
    for event in events[-SHOWN_EVENTS:]:
        rest = {k: v for k, v in event.items() if k not in ("event", "step", "time/wall_clock_s", "at")}
        text = ", ".join(f"{key} {_number(value)}" for key, value in rest.items() if value is not None)
        rows.append([f"{event['time/wall_clock_s']:.0f}", _number(event["step"]), event["event"], text])
    if not events:
        return ""
    is_open = any(event["event"] != EVALUATION for event in events)
    return _details(f"Events ({len(events)})", _table(["seconds", "step", "event", ""], rows), is_open)


DECISIONS = ("allocation", "rebalance_request", "switch_began", "switch_finished", "start_split")


def _decisions(events: list[dict[str, Any]]) -> str:
    """All that was decided about the split, in the order of time, with its reason."""
    rows = []
    for event in events:
        if event["event"] not in DECISIONS:
            continue
        what = next((str(event[key]) for key in ("change", "move", "outcome") if event.get(key)), "keep")
        if event["event"] == "rebalance_request":
            what = f"{what} asked for" if event["accepted"] else "refused"
        if event["event"] == "switch_finished":
            what = f"{what}: {event['outcome']}"
        split = " + ".join(str(count) for count in event.get("split", ()))
        why = event.get("reason") or "; ".join(event.get("failures", ()))
        rows.append([f"{event['time/wall_clock_s']:.0f}", _number(event["step"]), event["event"], split, what, why])
    if not rows:
        return ""
    table = _table(["seconds", "step", "event", "split", "decision", "reason"], rows)
    return _details(f"Decisions about the split ({len(rows)})", table)


def _metrics(history: History) -> str:
    """Every metric with its first and last value and what it means."""
    rows = []
    for name in sorted(history.names() - {"step"}):
        _, values = history.series(name)
        if len(values):
            rows.append([name, _number(values[0]), _number(values[-1]), describe(name) or ""])
    return _details("All metrics", _table(["metric", "first", "last", "meaning"], rows))


def _config(config: dict[str, Any]) -> str:
    if not config:
        return ""
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return _details("Configuration", f"<pre>{html.escape(text)}</pre>")


def _details(title: str, body: str, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{html.escape(title)}</summary>{body}</details>"


def _table(columns: list[str], rows: list[list[str]], numeric: bool = False) -> str:
    cell = '<td class="number">' if numeric else "<td>"
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"{cell}{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)
