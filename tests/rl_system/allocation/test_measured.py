"""A simulated run of a known profile, told as a run tells it: the profile that is measured is the one it had."""

import pytest
import yaml

from launch.plan import as_values
from rl_system.allocation.measured import measured_profile
from rl_system.allocation.observation import Observation, Split
from rl_system.allocation.planner import plan
from rl_system.allocation.profile import Profile, given_numbers, load_profile
from rl_system.allocation.simulator import Simulation
from rl_system.allocation.workloads import base_profile
from rl_system.config.allocation import AllocationConfig
from rl_system.config.load import build_config
from rl_system.config.run import RunConfig
from rl_system.errors import UserError

PROFILE = base_profile(
    {"max_staleness": 4, "dropped": 0.0, "tool_s": 40}, {"half_batch": 16, "sync_s": 0}, {"repeated": 0.1, "overhead_s": 5}
)


def configuration(profile: Profile) -> RunConfig:
    workload = profile.workload
    rollout = {name: getattr(workload, name) for name in ("group_size", "groups_per_batch", "max_staleness")}
    return build_config({"name": "seen", "rollout": rollout, "environment": {"concurrency": workload.concurrency}})


def told(profile: Profile, split: Split, steps: int) -> list[dict[str, float]]:
    """Lines of metrics.jsonl of a run in windows of one step."""
    config = AllocationConfig(rollout=split.rollout, trainer=split.trainer, mode="advise", window_steps=1)
    simulation, seen = Simulation(profile, "tree", config, steps=steps), []
    observe = simulation.policy.observe
    simulation.policy.observe = lambda observation: (seen.append(observation), observe(observation))[1]
    simulation.run()
    return [line(profile, observation) for observation in seen]


def line(profile: Profile, window: Observation) -> dict[str, float]:
    rollout, trainer, workload = window.rollout, window.trainer, profile.workload
    episodes = rollout.groups_per_s * window.seconds * workload.group_size
    return {
        "controller/rollout": rollout.accelerators, "controller/trainer": trainer.accelerators,
        "time/step_s": window.seconds, "rollout/episodes": episodes,
        "rollout/episode_tokens_mean": rollout.tokens_per_s * window.seconds / max(episodes, 1),
        "rollout/turns_mean": 1.0, "rollout/tokens_per_s": rollout.tokens_per_s, "rollout/tool_share": rollout.tool_share,
        "perf/permit_wait_share": rollout.waiting, "perf/rollout_idle_share": rollout.idle, "time/publish_paused_s": 0.0,
        "tree/sequence_tokens": trainer.tokens_per_s * window.seconds, "tree/shareable": trainer.compression,
        "tree/repeated": trainer.repeated, "tree/used": 1.0, "time/update_s": trainer.seconds_per_update,
        "time/overhead_s": trainer.overhead_s,
    }  # fmt: skip


@pytest.mark.parametrize("split", [Split(3, 5), Split(5, 3)])
def test_the_measured_profile_is_the_one_that_the_run_had(split):
    seen = measured_profile(configuration(PROFILE), told(PROFILE, split, 80))
    for section, name, tolerance in (
        ("workload", "sampled_tokens", 0.1), ("workload", "tool_s", 0.15), ("workload", "sequence_tokens", 0.1),
        ("workload", "compression", 0.01), ("generation", "tokens_per_s", 0.15),
    ):  # fmt: skip
        assert getattr(getattr(seen, section), name) == pytest.approx(
            getattr(getattr(PROFILE, section), name), rel=tolerance
        ), name
    training, expected = seen.training["tree"], PROFILE.training["tree"]
    assert training.tokens_per_s == pytest.approx(expected.tokens_per_s, rel=0.1)
    assert (training.repeated, training.overhead_s) == pytest.approx((expected.repeated, expected.overhead_s))
    mine, theirs = plan(seen, 8, auto_steps=20)[0], plan(PROFILE, 8, auto_steps=20)[0]
    assert abs(mine.rollout - theirs.rollout) <= 1
    assert mine.groups_per_s == pytest.approx(theirs.groups_per_s, rel=0.15)


def test_moves_that_were_made_tell_what_a_switch_costs_and_others_are_left_out():
    moved = {"event": "switch_finished", "outcome": "moved", "move": "to_rollout", "seconds": 40.0, "standstill_s": 3.0}
    failed = moved | {"outcome": "returned", "seconds": 900.0}
    switch = measured_profile(configuration(PROFILE), told(PROFILE, Split(4, 4), 10), [moved, failed]).switch
    assert (switch.engine_start_s, switch.rebuild_s) == (40.0, 3.0)
    assert "release_s" not in switch.model_fields_set


def test_a_measured_profile_says_of_every_number_where_it_comes_from_and_is_read_back(tmp_path):
    profile = measured_profile(configuration(PROFILE), told(PROFILE, Split(4, 4), 10), sampled=[100.0, 300.0])
    assert set(profile.sources.measured) | set(profile.sources.assumed) == set(given_numbers(profile))
    assert profile.sources.assumed == ("generation.half_batch",) and profile.workload.sampled_spread == 0.5
    path = tmp_path / "measured.yaml"
    path.write_text(yaml.safe_dump(as_values(profile)))
    assert as_values(load_profile(path)) == as_values(profile)


def test_a_run_that_is_too_short_is_refused():
    with pytest.raises(UserError, match="has 2 policy updates; a profile needs at least 3"):
        measured_profile(configuration(PROFILE), told(PROFILE, Split(4, 4), 10)[:2])
