"""Credit in trees of turns, some of which were given rewards of their own, against the definition said slowly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.algorithms import make_objective, prepare_batch, registry, score_group
from rl_system.algorithms.gae import generalised_advantages, with_gae
from rl_system.algorithms.sequences import sequence_runs
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.executor import make_executor
from rl_system.records import Ending, Episode, TrainBatch
from tests.rl_system.algorithms.episodes import episode, turn
from tests.rl_system.algorithms.models import tiny_model
from tests.rl_system.algorithms.test_groups import reference

VOCABULARY = 5
DENSE = ExecutorConfig(method="dense")
"""Every sequence by itself."""


@st.composite
def groups(draw: st.DrawFn, members: tuple[int, int] = (2, 4), most_turns: int = 7) -> list[Episode]:
    """Episodes whose turns extend, branch and start anew, with so few words that branches share what they sampled."""
    words = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=2)
    rewards = st.integers(-2, 4).map(lambda n: n / 4)
    made = []
    for _ in range(draw(st.integers(*members))):
        turns, parents, own = [], [], {}
        for k in range(draw(st.integers(1, most_turns))):
            parent = draw(st.integers(-1, k - 1))
            before = turns[parent].token_ids.tolist() if parent >= 0 else []
            turns.append(turn(before + draw(words), draw(words)))
            parents.append(parent)
            if draw(st.integers(0, 2)) == 0:
                own[k] = draw(rewards)
        whole = episode(turns, draw(rewards))
        whole.parents, whole.turn_rewards = parents, own
        made.append(whole)
    return made


def slow_credit(group: list[Episode], member: int, config: AlgorithmConfig) -> list[float]:
    """Every way that goes down from a turn, one by one, in plain numbers."""
    whole = group[member]
    rewards = [each.reward * config.reward_scale + config.reward_offset for each in group]

    def advantage(reward: float) -> float:
        mine = reward * config.reward_scale + config.reward_offset
        return reference(config.advantage, [*rewards[:member], mine, *rewards[member + 1 :]])[member]

    def children(k: int) -> list[int]:
        return [c for c, parent in enumerate(whole.parents) if parent == k]

    def earned(k: int) -> float:
        if config.credit == "spread":
            return advantage(whole.reward) / len(whole.turns)
        return 0.0 if children(k) else advantage(whole.reward)

    def ways(k: int, share: float, distance: int) -> Iterator[tuple[float, int, float]]:
        """Of `k` and all that goes on from it until something has its own: share, distance, what it adds."""
        if k in whole.turn_rewards:
            yield share, distance, advantage(whole.turn_rewards[k])
            return
        yield share, distance, earned(k)
        for c in children(k):
            yield from ways(c, share / len(children(k)), distance + 1)

    return [
        sum(share * config.turn_discount**distance * added for share, distance, added in ways(k, 1.0, 0))
        for k in range(len(whole.turns))
    ]


def tokens_of(group: list[Episode], sequences: list) -> list[tuple[Episode, int, np.ndarray]]:
    """Of every turn the advantages of its sampled tokens, from the sequences."""
    waiting, found = iter(sequences), []
    for whole in group:
        for run in sequence_runs(whole.turns):
            sequence = next(waiting)
            for k in run:
                each = whole.turns[k]
                response = slice(len(each.prompt_ids), len(each.token_ids))
                assert sequence.trained[response].all()
                found.append((whole, k, sequence.advantages[response]))
    assert next(waiting, None) is None
    return found


@settings(max_examples=150)
@given(
    group=groups(),
    name=st.sampled_from(registry.names("advantages")),
    credit=st.sampled_from(["last", "spread"]),
    discount=st.sampled_from([1.0, 0.5, 0.9]),
    scale=st.sampled_from([1.0, 10.0]),
)
def test_credit_in_random_trees_of_turns_is_what_the_definition_says(group, name, credit, discount, scale):
    discount = 1.0 if registry.find("advantages", name).critic else discount
    config = AlgorithmConfig(
        advantage=name, credit=credit, turn_discount=discount, reward_scale=scale, reward_offset=-0.5, drop_zero_signal=False
    )
    scored = score_group(group, config)
    for member in range(len(group)):
        np.testing.assert_allclose(scored.credits[member], slow_credit(group, member, config), rtol=1e-9, atol=1e-9)
    for whole, k, advantages in tokens_of(group, scored.sequences):
        member = next(i for i, each in enumerate(group) if each is whole)
        assert (advantages == np.float32(scored.credits[member][k])).all()


def plain_tree(parents: list[int], own: dict[int, float], reward: float) -> Episode:
    turns = []
    for k, parent in enumerate(parents):
        turns.append(turn([*(turns[parent].token_ids.tolist() if parent >= 0 else []), 100 + k], [k]))
    whole = episode(turns, reward)
    whole.parents, whole.turn_rewards = parents, own
    return whole


BY_HAND = [
    # A helper (2, 3) that failed, in a dialogue (0, 1, 4) that went well.
    ([-1, 0, -1, 2, 1], {3: 0.0}, {}, [1, 1, 0, 0, 1]),
    # Asked three times from one turn: two were judged, the third ends without and takes the episode's.
    ([-1, 0, 0, 0], {1: 0.0, 2: 0.5}, {}, [0.5, 0, 0.5, 1]),
    # A reward in the middle is that of what led there, and not of what came after.
    ([-1, 0, 1, 2], {1: 0.25}, {}, [0.25, 0.25, 1, 1]),
    ([-1, 0, 1, 2], {1: 0.25}, {"turn_discount": 0.5}, [0.125, 0.25, 0.5, 1]),
    ([-1, 0, 1, 2], {1: 0.25}, {"credit": "spread"}, [0.5, 0.25, 0.5, 0.25]),
    # Every call judged: each its own.
    ([-1, 0, 1], {0: 0.5, 1: 0.0, 2: 1.0}, {"turn_discount": 0.5}, [0.5, 0, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("parents", "own", "changes", "expected"), BY_HAND)
def test_rewards_of_turns_reach_back_along_what_led_to_them_by_hand(parents, own, changes, expected):
    """Against a member that earned 0, RLOO's advantage of a reward is the reward."""
    config = AlgorithmConfig(advantage="rloo", **changes)
    scored = score_group([plain_tree(parents, own, 1.0), plain_tree([-1], {}, 0.0)], config)
    np.testing.assert_allclose(scored.credits[0], expected, rtol=1e-12, atol=1e-12)
    assert scored.credits[1] == [-1.0]


def test_a_turns_advantage_is_that_of_its_episode_had_it_earned_as_much():
    rewards, own = [1.0, 0.0, 0.5, 0.25], 0.75
    group = [plain_tree([-1, 0], {0: own} if member == 2 else {}, reward) for member, reward in enumerate(rewards)]
    for name in registry.names("advantages"):
        instead = [1.0, 0.0, own, 0.25]
        scored = score_group(group, AlgorithmConfig(advantage=name))
        assert scored.credits[2].tolist() == pytest.approx([reference(name, instead)[2], reference(name, rewards)[2]])


def test_turns_that_differ_are_a_signal_where_their_episodes_do_not():
    group = [plain_tree([-1, -1], {0: 1.0, 1: 0.0}, 0.5), plain_tree([-1], {}, 0.5)]
    for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"):
        scored = score_group(group, AlgorithmConfig(advantage=name))
        assert scored.signal and scored.advantages.tolist() == [0.0, 0.0]
        assert scored.credits[0][0] > 0 > scored.credits[0][1] and scored.credits[1].tolist() == [0.0]
    group = [plain_tree([-1, -1], {0: 0.5, 1: 0.5}, 0.5), plain_tree([-1], {}, 0.5)]
    assert not score_group(group, AlgorithmConfig(advantage="grpo")).signal


@pytest.mark.parametrize(("ended", "trained"), [(Ending.FAILED, 1), (Ending.TIMEOUT, 1), (Ending.MAX_TURNS, 2)])
def test_rewards_of_turns_count_no_more_than_that_of_an_episode_that_did_not_come_to_its_end(ended, trained):
    cut = plain_tree([-1], {0: 1.0}, 1.0)
    cut.ended = ended
    config = AlgorithmConfig(advantage="dr_grpo", endings={Ending.TIMEOUT: "mask"}, drop_zero_signal=False)
    scored = score_group([cut, plain_tree([-1], {}, 1.0)], config)
    assert len(scored.sequences) == trained
    assert scored.credits[0].tolist() == ([0.0] if trained == 1 else [-0.5])


def test_form_and_length_cost_turns_what_they_cost_their_episode():
    group = [plain_tree([-1, -1], {0: 0.25}, 1.0), plain_tree([-1], {}, 0.0)]
    group[0].counts = {"malformed_calls": 1}
    scored = score_group(group, AlgorithmConfig(advantage="rloo", malformed_call_penalty=0.125))
    assert scored.credits[0].tolist() == [0.125, 0.875]


def test_a_critic_is_told_returns_that_are_the_credit_of_each_turn():
    """What a sequence earns at a token is what its return exceeds the next one's by, so that all of it is what is left."""
    group = [plain_tree([-1, 0, 1], {1: 0.25}, 1.0), plain_tree([-1], {}, 0.0)]
    sequences = score_group(group, AlgorithmConfig(advantage="gae")).sequences
    batch = TrainBatch.of(sequences)
    batch.values = np.linspace(0, 1, batch.sequence_tokens)
    sampled = np.flatnonzero(batch.trained[: batch.offsets[1]])
    advantages, _ = generalised_advantages(np.array([0.0, -0.75, 1.0]), batch.values[sampled], 1.0, 0.95)
    np.testing.assert_allclose(with_gae(batch).advantages[sampled], advantages, rtol=1e-6)


def slow_gradients(model, group: list[Episode], config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    """Every turn computed alone, over its whole context: `−Σ C_k · Σ log π / N`."""
    model.zero_grad(set_to_none=True)
    total = sum(len(each.response_ids) for whole in group for each in whole.turns)
    for member, whole in enumerate(group):
        for k, credit in enumerate(slow_credit(group, member, config)):
            ids = torch.tensor(whole.turns[k].token_ids, dtype=torch.long)[None]
            logp = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            sampled = logp[len(whole.turns[k].prompt_ids) - 1 :]
            (-float(np.float32(credit)) * sampled.sum() / total).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@settings(max_examples=12)
@given(group=groups(members=(2, 3), most_turns=5), name=st.sampled_from(["grpo", "rloo", "reinforce_pp"]))
def test_gradients_through_the_tree_are_those_of_every_turn_alone_also_where_branches_share_what_they_sampled(group, name):
    twin = plain_tree([-1, -1, 0], {0: 1.0, 1: -0.5}, 0.25)  # the same words twice, worth different things
    twin.turns = [turn([1, 2], [3, 4]), turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 0], [2])]
    group = [*group, twin]
    config = AlgorithmConfig(
        advantage=name, objective="reinforce", correction="none", drop_zero_signal=False, normalise_batch=False
    )
    model = tiny_model(VOCABULARY, layers=1)
    expected = slow_gradients(model, group, config)
    batch = prepare_batch(TrainBatch.of(score_group(group, config).sequences), config, 0)
    found = []
    for executor in (DENSE, ExecutorConfig(method="tree", block_tokens=0), ExecutorConfig(method="tree", block_tokens=4)):
        model.zero_grad(set_to_none=True)
        make_executor(model, executor).step(batch, make_objective(config, 0))
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    dense, *trees = found
    for parameter_name, gradient in dense.items():
        for tree in trees:
            assert (tree[parameter_name] - gradient).norm() <= 1e-10 * (gradient.norm() + 1e-2), parameter_name
        slow = expected[parameter_name]  # a batch holds advantages as float32
        assert (gradient - slow).norm() <= 1e-6 * (slow.norm() + 1e-1), parameter_name
