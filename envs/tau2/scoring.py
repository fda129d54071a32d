"""τ²-bench's reward, computed on the live world instead of by replaying the whole dialogue.

Upstream's `evaluate_simulation` builds two worlds per episode, replays the dialogue into one and the gold actions into
the other, and compares hashes; it raises where a replayed answer differs or an assertion meets a state that it did
not expect. Here the agent's own world is hashed where it stands, and the gold world's hash is computed once per
task and process. The reward is the same: the product of the parts in the task's reward basis, and 0 unless the
episode came to its own end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial

from envs.protocol import Score
from envs.tau2.domains import DOMAINS
from envs.tau2.upstream import (
    ActionEvaluator,
    CommunicateEvaluator,
    EnvAssertion,
    RewardType,
    UpstreamMessage,
    UpstreamTask,
    World,
)
from rl_system.records import Ending


def score_episode(
    domain: str, task: UpstreamTask, world: World, trajectory: list[UpstreamMessage], ended: Ending
) -> Score:
    """Parts carry upstream's names in lower case. `evaluator_errors` counts judgements that raised on what the agent
    left behind, such as an assertion about a task that was never created: what they judge is not met."""
    if not ended.finished:
        return Score(0.0)
    criteria = task.evaluation_criteria
    if criteria is None:
        return Score(1.0)
    basis = set(criteria.reward_basis)
    judgements: list[tuple[str, Callable[[], float]]] = []
    # Upstream pays the full environment reward where a task names neither actions nor assertions.
    if criteria.actions is not None or criteria.env_assertions is not None:
        if RewardType.DB in basis:
            gold = gold_hashes(domain, task.id)
            judgements.append(("db", lambda: float(_hashes(world) == gold)))
        if RewardType.ENV_ASSERTION in basis:
            for assertion in criteria.env_assertions or []:
                judgements.append(("env_assertion", partial(_met, world, assertion)))
    if RewardType.ACTION in basis:
        judgements.append(("action", lambda: ActionEvaluator.calculate_reward(task, trajectory).reward))
    if RewardType.COMMUNICATE in basis:
        judgements.append(("communicate", lambda: CommunicateEvaluator.calculate_reward(task, trajectory).reward))
    parts: dict[str, float] = {}
    errors = 0
    for part, judge in judgements:
        try:
            met = judge()
        except Exception:  # Upstream's code raises whatever it likes on a state that it did not expect.
            met, errors = 0.0, errors + 1
        parts[part] = parts.get(part, 1.0) * met
    return Score(math.prod(parts.values()), parts, {"evaluator_errors": errors} if errors else {})


@functools.cache
def gold_hashes(domain: str, task_id: str) -> tuple[str | None, str | None]:
    """Hashes of the agent's and the user's database after the gold actions, in the way that upstream gets there:
    a world in dual control, no synchronisation between actions, and actions that fail are passed over."""
    task = DOMAINS[domain].task(task_id)
    world = DOMAINS[domain].build(solo=False)
    set_initial_state(world, task)
    for action in task.evaluation_criteria.actions or []:
        try:
            world.make_tool_call(tool_name=action.name, requestor=action.requestor, **action.arguments)
        except Exception:  # Upstream's tools raise whatever they like, and upstream's evaluator ignores it.
            continue
    return _hashes(world)


def set_initial_state(world: World, task: UpstreamTask) -> None:
    initial = task.initial_state
    world.set_state(
        initialization_data=initial.initialization_data if initial else None,
        initialization_actions=initial.initialization_actions if initial else None,
        message_history=(initial.message_history if initial else None) or [],
    )


def _hashes(world: World) -> tuple[str | None, str | None]:
    return world.get_db_hash(), world.get_user_db_hash()


def _met(world: World, assertion: EnvAssertion) -> float:
    return float(world.run_env_assertion(assertion, raise_assertion_error=False))
