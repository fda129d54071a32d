"""What the charts of a report show where their data touch an edge, coincide, or are a single point."""

import pytest
from matplotlib.figure import Figure

from rl_system.tracking.charts import CHARTS, Chart
from rl_system.tracking.history import History

LEARNED = {"reward/mean": 1.0, "reward/success_rate": 1.0, "perf/rollout_idle_share": 0.0, "perf/train_wait_share": 1.0,
           "off_policy/staleness_mean": 0.0, "off_policy/staleness_max": 1.0, "controller/rollout": 1.0,
           "controller/trainer": 1.0}  # fmt: skip


def drawn(title: str, steps: int, metrics: dict[str, float] = LEARNED):
    """The axes of a chart of a run with the same metrics at every step."""
    lines = [{"step": step, "time/wall_clock_s": 60.0 * step, **metrics} for step in range(1, steps + 1)]
    chart: Chart = next(chart for charts in CHARTS.values() for chart in charts if chart.title == title)
    axes = Figure().add_subplot()
    assert chart.draw(axes, History(None, lines, [], {"rollout": {"max_staleness": 2}}))
    return axes


@pytest.mark.parametrize("title", ["Reward over time", "Reward over updates", "Success", "Idle and waiting", "Staleness",
                                   "Accelerators", "Accelerators over time"])  # fmt: skip
def test_no_line_is_cut_at_the_edge_of_a_chart(title):
    axes = drawn(title, steps=3)
    low, high = axes.get_ylim()
    for line in axes.lines:
        values = line.get_ydata()
        assert low <= min(values) and max(values) <= high
        assert not line.get_clip_on() or low < min(values) and max(values) < high


def test_the_bound_of_staleness_is_in_the_picture_also_where_nothing_comes_near():
    assert drawn("Staleness", steps=3).get_ylim()[1] > 2


@pytest.mark.parametrize("title", ["Reward over updates", "Idle and waiting", "Accelerators", "Staleness"])
def test_a_single_update_stands_on_an_axis_of_whole_updates(title):
    axes = drawn(title, steps=1)
    low, high = axes.get_xlim()
    assert low <= 0 and high >= 2
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


@pytest.mark.parametrize("title", ["Accelerators", "Accelerators over time"])
def test_both_sides_of_an_even_split_are_seen(title):
    generate, train = drawn(title, steps=3).lines[:2]
    assert (generate.get_label(), train.get_label()) == ("generate", "train")
    assert list(generate.get_ydata()) == list(train.get_ydata())
    assert generate.get_linewidth() >= 2 * train.get_linewidth() and generate.get_zorder() <= train.get_zorder()
