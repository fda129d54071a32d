"""The charts of a run's report: which metrics belong together, and what they are titled.

A chart whose metrics a run did not write is left out; a run of one step still draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from rl_system.tracking.drawing import COLOURS, curve, legend, over_minutes, over_updates, svg
from rl_system.tracking.history import History


@dataclass(frozen=True, slots=True)
class Chart:
    """title and one line on how to read it; draw puts it on axes and says whether there was anything to draw."""

    title: str
    reading: str
    draw: Callable[[Axes, History], bool]

    def render(self, history: History) -> str | None:
        """The chart as SVG; None where the run has nothing for it."""
        drawn = False

        def onto(axes: Axes) -> None:
            nonlocal drawn
            drawn = self.draw(axes, history)

        text = svg(onto, salt=self.title)
        return text if drawn else None


def _from_zero(axes: Axes) -> None:
    """A y-axis that holds 0 and everything drawn, and is no line where all of it is 0."""
    axes.relim()
    low, high = axes.dataLim.intervaly
    axes.autoscale(axis="y")
    axes.set_ylim(min(0.0, low), None if high > 0 or low < 0 else 1.0)


def _lines(labels: dict[str, str], *, scale: float = 1.0, unit: str = "") -> Callable[[Axes, History], bool]:
    """A line for each metric of `labels` (metric: label) that is there, from 0 up."""

    def draw(axes: Axes, history: History) -> bool:
        drawn = False
        for name, label in labels.items():
            x, y = history.series(name)
            if len(x):
                axes.plot(x, y * scale, label=label, marker="o", markersize=2.5, linewidth=1.4, clip_on=False)
                drawn = True
        over_updates(axes)
        if drawn and len(labels) > 1:
            legend(axes)
        axes.set_ylabel(unit)
        _from_zero(axes)
        return drawn

    return draw


def _shares(labels: dict[str, str]) -> Callable[[Axes, History], bool]:
    return _lines(labels, scale=100, unit="%")


def _reward_over_time(axes: Axes, history: History) -> bool:
    x, y = history.series("reward/mean", "time/wall_clock_s")
    if len(x):
        curve(axes, x / 60, y)
        _from_zero(axes)
    over_minutes(axes)
    axes.set_ylabel("mean reward")
    return len(x) > 0


def _reward_over_updates(axes: Axes, history: History) -> bool:
    x, y = history.series("reward/mean")
    if len(x):
        curve(axes, x, y)
        _from_zero(axes)
    over_updates(axes)
    axes.set_ylabel("mean reward")
    return len(x) > 0


def _success(axes: Axes, history: History) -> bool:
    x, y = history.series("reward/success_rate")
    if len(x):
        curve(axes, x, y * 100, "training tasks")
    evaluations = [line for line in history.evaluations() if line.get("eval/success_rate") is not None]
    if evaluations:
        axes.plot(
            [line["step"] for line in evaluations],
            [line["eval/success_rate"] * 100 for line in evaluations],
            "D--", color=COLOURS[3], markersize=6, linewidth=1, label="held-out tasks", clip_on=False,
        )  # fmt: skip
    over_updates(axes)
    axes.set_ylabel("success, %")
    axes.set_ylim(0, 100)
    if len(x) or evaluations:
        legend(axes)
    return bool(len(x) or evaluations)


def _staleness(axes: Axes, history: History) -> bool:
    drawn = _lines({"off_policy/staleness_mean": "mean", "off_policy/staleness_max": "largest"})(axes, history)
    bound = history.config.get("rollout", {}).get("max_staleness")
    if drawn and bound is not None:
        axes.axhline(bound, color=COLOURS[3], linestyle="--", linewidth=1, label="bound")
        legend(axes)
        _from_zero(axes)
    axes.set_ylabel("policy updates")
    return drawn


def _split_style(side: str) -> dict[str, Any]:
    """With as many accelerators on both sides the line of those that train lies on that of those that generate."""
    return {"linewidth": 5.0, "alpha": 0.45} if side == "generate" else {"linewidth": 1.8}


def _split(axes: Axes, history: History) -> bool:
    drawn = False
    for name, label, style in (
        ("controller/rollout", "generate", "-"),
        ("controller/trainer", "train", "-"),
        ("controller/advised_rollout", "advised to generate", ":"),
        ("controller/advised_trainer", "advised to train", ":"),
    ):
        x, y = history.series(name)
        if len(x):
            colour = COLOURS[0] if "rollout" in name else COLOURS[1]
            axes.step(x, y, where="mid", linestyle=style, color=colour, label=label, marker=".", markersize=4,
                      clip_on=False, **_split_style(label))  # fmt: skip
            drawn = True
    if drawn:
        legend(axes)
        axes.set_ylim(bottom=0)
    over_updates(axes)
    axes.set_ylabel("accelerators")
    return drawn


SWITCHES = {True: ("^", COLOURS[2], "moved"), False: ("x", COLOURS[3], "came to nothing")}


def _timeline(axes: Axes, history: History) -> bool:
    """The split by wall clock, with everything that was decided otherwise than to keep it."""
    drawn = False
    for name, label in (("controller/rollout", "generate"), ("controller/trainer", "train")):
        x, y = history.series(name, "time/wall_clock_s")
        if len(x):
            axes.step(x / 60, y, where="post", label=label, clip_on=False, **_split_style(label))
            drawn = True
    finished = [event for event in history.events if event["event"] == "switch_finished"]
    for done, (marker, colour, label) in SWITCHES.items():
        ends = [event for event in finished if (event["outcome"] in ("moved", "left")) is done]
        if ends:
            minutes = [event["time/wall_clock_s"] / 60 for event in ends]
            axes.plot(minutes, [event["split"][0] for event in ends], marker, color=colour, label=label, clip_on=False)
    refused = [e for e in history.events if e["event"] == "rebalance_request" and not e["accepted"]]
    held = [e for e in history.events if e["event"] == "allocation" and e["move"] is None and e["best"] != e["split"]]
    for events, marker, label in ((refused, "s", "request refused"), (held, "|", "another split was not worth it")):
        if events and drawn:
            axes.plot([event["time/wall_clock_s"] / 60 for event in events], [0.0] * len(events), marker,
                      color=COLOURS[4], label=label, clip_on=False)  # fmt: skip
    if drawn:
        legend(axes)
        axes.set_ylim(bottom=0)
    over_minutes(axes)
    axes.set_ylabel("accelerators")
    return drawn


TIMES = {"time/wait_s": "waiting for groups", "time/build_s": "tree", "time/update_s": "update"}
"""Parts of a step of the training side that follow each other; publishing goes on beside the next step."""


def _times(axes: Axes, history: History) -> bool:
    steps = [line["step"] for line in history.steps]
    bottom = [0.0] * len(steps)
    drawn = False
    for name, label in TIMES.items():
        seconds = [line.get(name) or 0.0 for line in history.steps]
        if any(seconds):
            axes.bar(steps, seconds, bottom=bottom, label=label, width=0.8)
            bottom = [a + b for a, b in zip(bottom, seconds, strict=True)]
            drawn = True
    if drawn:
        legend(axes)
    over_updates(axes)
    axes.set_ylabel("seconds")
    return drawn


CHARTS: dict[str, list[Chart]] = {
    "Learning": [
        Chart("Reward over time", "Points are steps, the line their trailing mean.", _reward_over_time),
        Chart("Reward over updates", "The same by policy update.", _reward_over_updates),
        Chart("Success", "Episodes with full reward; diamonds are evaluations on held-out tasks.", _success),
        Chart("What there is to learn from", "Share of groups dropped because all members earned the same.",
              _shares({"reward/dropped_share": "groups without signal"})),
        Chart("Entropy", "Nats per sampled token; falling to 0 is collapse.",
              _lines({"train/entropy": "entropy"})),
        Chart("Gradient norm", "Before clipping.",
              _lines({"train/grad_norm": "policy", "train/critic_grad_norm": "critic"})),
        Chart("Distance from the reference policy", "Estimated KL divergence, nats per token.",
              _lines({"train/reference_kl": "KL"})),
        Chart("Critic", "Share of the returns' variance that its values foretold; 0: no more than a constant.",
              _lines({"train/value_explained_variance": "explained variance"})),
    ],
    "How far off-policy": [
        Chart("Staleness", "Policy updates between sampling a token and training on it.", _staleness),
        Chart("Ratio of proximal to behaviour policy", "1 on-policy. The largest shows single tokens that disagree.",
              _lines({"off_policy/behaviour_ratio_mean": "mean", "off_policy/behaviour_ratio_max": "largest"})),
        Chart("Clipped and masked", "Share of trained tokens that the objective clips or a correction removes.",
              _shares({"train/clip_fraction": "clipped", "off_policy/capped_fraction": "above the cap",
                       "off_policy/masked_fraction": "masked"})),
        Chart("Effective sample size", "What the correction's weights leave of the trained tokens; low: few decide.",
              _shares({"off_policy/effective_sample_size": "of the tokens"})),
        Chart("Engine against trainer", "Largest difference of logprobs on the same tokens after a weight update.",
              _lines({"rollout/logprob_gap": "nats"})),
    ],
    "Where the hardware goes": [
        Chart("Idle and waiting", "What each side waits for; the split should move towards the side that never does.",
              _shares({"perf/rollout_idle_share": "engines idle", "perf/permit_wait_share": "held by staleness",
                       "perf/train_wait_share": "trainer waits for groups"})),
        Chart("Accelerators", "Dotted: the split that the controller would choose.", _split),
        Chart("Accelerators over time", "Ends of moves, refused requests, and windows in which a better split was left.",
              _timeline),
        Chart("Generation", "Tokens sampled per second.", _lines({"rollout/tokens_per_s": "tokens/s"})),
        Chart("Training", "Tokens per second of the update: of all sequences, and those really computed.",
              _lines({"perf/train_tokens_per_s": "of sequences", "perf/train_unique_tokens_per_s": "computed"})),
        Chart("Prefix sharing", "Sequence tokens per token computed.", _lines({"tree/compression": "compression"})),
        Chart("Where a step's time goes", "The training side; weights are published beside the next step.", _times),
    ],
    "Rollouts": [
        Chart("Length of episodes", "Sampled tokens per episode.", _lines({"rollout/episode_tokens_mean": "tokens"})),
        Chart("Turns and tool calls", "Per episode.",
              _lines({"rollout/turns_mean": "turns", "rollout/tool_calls_mean": "tool calls",
                      "rollout/tool_errors_mean": "tool errors", "rollout/malformed_calls_mean": "malformed calls"})),
        Chart("Episodes cut short or lost", "Truncated by a budget; failed for a broken environment.",
              _shares({"rollout/truncated_share": "truncated", "rollout/failed_share": "failed"})),
        Chart("Curriculum", "Estimated success rate of the next task, which should be near a half, and of all tried.",
              _shares({"rollout/curriculum_success_next": "next task",
                       "rollout/curriculum_success_mean": "all tried"})),
        Chart("Queue", "Groups ready for the trainer, and being generated.",
              _lines({"queue/ready_groups": "ready", "queue/running_groups": "running"})),
    ],
}  # fmt: skip
