from dataclasses import replace

import pytest

from rl_system.allocation.decision import Move
from rl_system.allocation.observation import Split, SwitchCost
from rl_system.allocation.pipeline import Limit
from rl_system.allocation.policy import SplitPolicy
from rl_system.allocation.switch import Side
from rl_system.config.allocation import AllocationConfig
from rl_system.errors import UserError
from tests.rl_system.allocation.plant import Plant


def policy(**changes) -> SplitPolicy:
    return SplitPolicy(AllocationConfig(**({"mode": "auto", "switch_cost_s": 1.0} | changes)))


TRAINING_STARVED = Plant(generation=1.0, training=0.4)
"""At 6 + 2 the trainers can do 0.8 groups/s and generation 6."""


def test_the_slower_side_gets_the_accelerator():
    decision = policy().observe(TRAINING_STARVED.observe(Split(6, 2), 10))
    assert decision.move is Move.TO_TRAINER
    assert decision.limit is Limit.TRAINING
    decision = policy().observe(Plant(0.4, 1.0).observe(Split(2, 6), 10))
    assert decision.move is Move.TO_ROLLOUT
    assert decision.limit is Limit.GENERATION


def test_the_reason_gives_the_limit_the_rates_and_the_split():
    reason = policy().observe(TRAINING_STARVED.observe(Split(6, 2), 10)).reason
    for word in ("training limits", "trainers wait 0%", "2 rollout + 6 training", "groups/s against", "one to trainer"):
        assert word in reason


def test_every_split_within_the_bounds_is_predicted_and_no_other():
    decision = policy(rollout=3, min_rollout=3, trainer=2, min_trainer=2).observe(
        TRAINING_STARVED.observe(Split(6, 2), 10)
    )
    assert sorted(decision.predicted) == [Split(n, 8 - n) for n in (3, 4, 5, 6)]


@pytest.mark.parametrize("mode", ["off", "advise"])
def test_only_auto_moves(mode):
    decision = policy(mode=mode).observe(TRAINING_STARVED.observe(Split(6, 2), 10))
    assert decision.move is None
    assert decision.advice is (Move.TO_TRAINER if mode == "advise" else None)


def test_a_gain_below_the_margin_does_not_move():
    plant = Plant(generation=1.0, training=1.02)
    assert policy(margin=0.3).observe(plant.observe(Split(5, 3), 10)).move is None
    decision = policy(margin=0.1).observe(plant.observe(Split(5, 3), 10))
    assert decision.move is Move.TO_TRAINER and 0.1 <= decision.gain < 0.3


def test_a_large_batch_makes_a_small_gain_certain_enough():
    observation = Plant(generation=1.0, training=1.02).observe(Split(5, 3), 10)
    subject = policy(margin=0.3)
    gain = subject.observe(observation).gain
    assert 0.15 < gain < 0.3
    larger = replace(observation, groups_per_batch=64, trainer=replace(observation.trainer, seconds_per_update=64 / 3.06))
    assert policy(margin=0.3).observe(larger).move is Move.TO_TRAINER


def test_a_gain_that_does_not_repay_the_switch_does_not_move():
    observation = TRAINING_STARVED.observe(Split(6, 2), 10)
    assert policy(switch_cost_s=10.0).observe(observation).move is Move.TO_TRAINER
    decision = policy(switch_cost_s=1e5).observe(observation)
    assert decision.move is None and "cost" in decision.reason


def test_a_gain_that_the_rest_of_the_run_does_not_repay_does_not_move():
    observation = TRAINING_STARVED.observe(Split(6, 2), 10)
    assert policy(switch_cost_s=30.0).observe(replace(observation, steps_left=40)).move is Move.TO_TRAINER
    decision = policy(switch_cost_s=30.0).observe(replace(observation, steps_left=1))
    assert decision.move is None and "over 1 steps this gains" in decision.reason


def test_measured_costs_take_over_from_the_guess():
    subject = policy(switch_cost_s=1e6)
    cheap = (SwitchCost(False, 1.0),) * 10**5
    assert subject.observe(TRAINING_STARVED.observe(Split(6, 2), 10, switches=cheap)).move is Move.TO_TRAINER
    assert subject.switch_cost_s(Move.TO_TRAINER) == pytest.approx(11.0, abs=0.1)
    assert subject.switch_cost_s(Move.TO_ROLLOUT) == 1e6


MORE_STARVED = Plant(generation=2.0, training=0.4)


def test_after_a_move_the_new_split_is_measured_before_the_next():
    subject = policy(dwell_steps=1)
    assert subject.observe(MORE_STARVED.observe(Split(4, 4), 10)).move
    decision = subject.observe(MORE_STARVED.observe(Split(3, 5), 20, disturbed=True))
    assert decision.move is None and "undisturbed" in decision.reason
    assert subject.observe(MORE_STARVED.observe(Split(3, 5), 30)).move


def test_two_moves_are_at_least_the_dwell_time_apart():
    subject = policy(dwell_steps=10)
    assert subject.observe(MORE_STARVED.observe(Split(4, 4), 10)).move
    decision = subject.observe(MORE_STARVED.observe(Split(3, 5), 19))
    assert decision.move is None and "9 of 10 steps" in decision.reason
    assert subject.observe(MORE_STARVED.observe(Split(3, 5), 20)).move


def test_undoing_the_last_move_needs_a_larger_gain_for_two_horizons():
    subject = policy(margin=0.05, horizon_steps=50, dwell_steps=1)
    assert subject.observe(TRAINING_STARVED.observe(Split(6, 2), 10)).move is Move.TO_TRAINER
    assert subject.margin(Move.TO_TRAINER, 20) == 0.05
    assert subject.margin(Move.TO_ROLLOUT, 20) == 0.1
    assert subject.margin(Move.TO_ROLLOUT, 110) == 0.1
    assert subject.margin(Move.TO_ROLLOUT, 111) == 0.05


def test_every_change_of_direction_doubles_the_margin_of_the_next():
    subject = policy(margin=0.05, horizon_steps=50, dwell_steps=1)
    for step, move in ((1, Move.TO_TRAINER), (2, Move.TO_ROLLOUT), (3, Move.TO_TRAINER)):
        subject.request(move, 1, Split(4, 4))
        subject.observe(TRAINING_STARVED.observe(Split(4, 4), step))
    assert subject.margin(Move.TO_ROLLOUT, 4) == pytest.approx(0.05 * 2**3)


def test_a_disturbed_window_teaches_nothing():
    subject = policy()
    decision = subject.observe(TRAINING_STARVED.observe(Split(6, 2), 10, disturbed=True))
    assert decision.move is None and decision.limit is Limit.UNKNOWN and not decision.predicted


def test_the_workload_of_now_counts_and_not_the_one_of_the_fit():
    """Half the sharing doubles the trainers' work for a group; their speed in unique tokens stays what it was."""
    subject = policy()
    plant = Plant(1.0, 1.0, compression=8.0)
    for step in (2, 4, 6):
        subject.observe(plant.observe(Split(4, 4), step))
    before = subject.observe(plant.observe(Split(4, 4), 8))
    now = plant.observe(Split(4, 4), 10)
    halved = replace(
        now,
        rollout=replace(now.rollout, groups_per_s=2.0, tokens_per_s=2000.0, waiting=0.5, idle=0.5),
        trainer=replace(now.trainer, groups_per_s=2.0, tokens_per_s=2000.0, compression=4.0, seconds_per_update=8.0),
    )
    speed = subject.state()["forecast"]["training"]["mean"]
    for step in (10, 12, 14):
        after = subject.observe(replace(halved, step=step))
    assert before.move is None and subject.state()["forecast"]["training"]["mean"] == pytest.approx(speed)
    assert after.best.trainer > 4


def test_a_request_is_carried_out_one_accelerator_at_a_time_and_before_anything_else():
    subject = policy(mode="advise")
    subject.request(Move.TO_ROLLOUT, 2, Split(4, 4))
    assert subject.pending == 2
    moves = [subject.observe(TRAINING_STARVED.observe(split, 1)) for split in (Split(4, 4), Split(5, 3), Split(6, 2))]
    assert [decision.move for decision in moves] == [Move.TO_ROLLOUT, Move.TO_ROLLOUT, None]
    assert "1 more to come" in moves[0].reason


def test_a_run_that_keeps_its_split_takes_no_requests():
    with pytest.raises(UserError, match=r"allocation\.mode is 'off'"):
        policy(mode="off").request(Move.TO_ROLLOUT, 1, Split(4, 4))


def test_a_request_beyond_the_bounds_is_refused_with_the_bounds():
    subject = policy(trainer=2, min_trainer=2)
    with pytest.raises(UserError, match=r"would leave 7 rollout \+ 1 training.*min_trainer 2"):
        subject.request(Move.TO_ROLLOUT, 3, Split(4, 4))


def test_a_request_that_became_impossible_is_void():
    subject = policy()
    subject.request(Move.TO_ROLLOUT, 1, Split(2, 2))
    decision = subject.observe(TRAINING_STARVED.observe(Split(3, 1), 1))
    assert decision.move is None and "void" in decision.reason


def test_a_policy_goes_on_from_its_state():
    first, second = policy(), policy()
    for step in (2, 4, 6):
        first.observe(Plant(1.0, 0.9, noise=0.1).observe(Split(4, 4), step))
    second.restore(first.state())
    observation = TRAINING_STARVED.observe(Split(4, 4), 20)
    assert second.observe(observation).predicted == first.observe(observation).predicted


def test_a_decision_takes_half_of_the_way_and_then_measures_again():
    """At 7 + 1 the best split is 2 + 6, five away: three go one after the other, undisturbed windows or not."""
    subject, plant = policy(), Plant(generation=4.0, training=1.0)
    decision = subject.observe(plant.observe(Split(7, 1), 10))
    assert decision.move is Move.TO_TRAINER and subject.pending == abs(decision.best.rollout - 7 + 1) // 2 > 0
    split, step = Split(6, 2), 11
    while subject.pending:
        decision = subject.observe(plant.observe(split, step, disturbed=True))
        assert decision.move is Move.TO_TRAINER and "goes on" in decision.reason
        split, step = decision.move.applied(split), step + 1
    assert 3 <= split.rollout <= 5
    assert subject.observe(plant.observe(split, step, disturbed=True)).move is None


def test_a_decision_does_not_go_on_from_a_split_that_it_did_not_lead_to():
    subject, plant = policy(), Plant(generation=4.0, training=1.0)
    assert subject.observe(plant.observe(Split(7, 1), 10)).move and subject.pending
    assert subject.observe(plant.observe(Split(7, 1), 11, disturbed=True)).move is None
    assert not subject.pending


def test_a_request_takes_the_place_of_a_decision_that_goes_on():
    subject, plant = policy(), Plant(generation=4.0, training=1.0)
    assert subject.observe(plant.observe(Split(7, 1), 10)).move and subject.pending
    subject.request(Move.TO_ROLLOUT, 1, Split(6, 2))
    assert subject.observe(plant.observe(Split(6, 2), 11, disturbed=True)).move is Move.TO_ROLLOUT
    assert not subject.pending


def test_short_windows_in_which_few_groups_end_do_not_make_groups_look_long():
    """32 groups of 1000 tokens by two windows of one rate, but all the groups end in the long one."""
    subject = policy()
    plant = Plant(1.0, 9.0)
    for step in range(2, 30, 2):
        window = plant.observe(Split(4, 4), step)
        long = step % 4 == 0
        groups_per_s = 4.0 * 1.1 * 10 / 11 if long else 0.4
        subject.observe(
            replace(
                window,
                seconds=100.0 if long else 1.0,
                rollout=replace(window.rollout, groups_per_s=groups_per_s if long else 0.4, tokens_per_s=4000.0),
            )
        )
    seen = subject.state()["forecast"]["groups"]
    assert seen["sampled"] / seen["finished"] == pytest.approx(1000, rel=0.05)


def test_a_pool_too_small_for_its_engines_gets_no_more_of_them_and_the_reason_names_the_lever():
    """Generation limits at 2 + 6, but the engines wait for episodes that are in their tools."""
    window = Plant(0.4, 1.0).observe(Split(2, 6), 10)
    in_tools = replace(window, rollout=replace(window.rollout, idle=0.2, tool_share=0.6))
    assert policy().observe(window).move is Move.TO_ROLLOUT
    decision = policy().observe(in_tools)
    assert decision.move is None and decision.limit is Limit.CONCURRENCY and decision.gain > 0.1
    assert "environment.concurrency would help" in decision.reason and "no accelerator moves" in decision.reason


def test_a_staleness_bound_that_makes_even_sides_take_turns_moves_nothing_and_the_reason_names_the_lever():
    """Strictly on-policy: both sides can do 4 groups/s and together they do 2."""
    window = Plant(1.0, 1.0).observe(Split(4, 4), 10)
    turns = replace(
        window,
        max_staleness=0,
        rollout=replace(window.rollout, groups_per_s=2.0, tokens_per_s=2000.0, waiting=0.5, waiting_in_updates=1.0, idle=0.5),
        trainer=replace(window.trainer, groups_per_s=2.0, tokens_per_s=2000.0, waiting=0.5),
    )
    subject = policy()
    for step in (10, 12, 14):
        decision = subject.observe(replace(turns, step=step))
        assert decision.move is None and decision.limit is Limit.STALENESS
        assert "a larger rollout.max_staleness than 0" in decision.reason


def test_dense_training_of_what_a_tree_would_share_is_named_whatever_the_split():
    window = Plant(1.0, 0.4, compression=6.0, method="dense").observe(Split(4, 4), 10)
    assert "a tree would compress 6.0 times" in policy().observe(window).reason


def test_a_new_accelerator_goes_to_the_side_that_limits_and_to_generation_while_nothing_is_known():
    subject = policy()
    assert subject.place(Split(4, 4)) is Side.ROLLOUT
    subject.observe(TRAINING_STARVED.observe(Split(4, 4), 10))
    assert subject.place(Split(4, 4)) is Side.TRAINER
    subject = policy()
    subject.observe(Plant(0.4, 1.0).observe(Split(4, 4), 10))
    assert subject.place(Split(4, 4)) is Side.ROLLOUT
