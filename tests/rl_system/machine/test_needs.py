import pytest

from rl_system.config.load import build_config
from rl_system.config.run import RunConfig
from rl_system.machine.needs import Place, RunNeeds

PARAMETERS = 1 << 24


def config(*changes: str) -> RunConfig:
    return build_config({"name": "run"}, ["--rollout.engine.kv_cache_gib", "0.5", *changes])


def needs(*changes: str) -> RunNeeds:
    return RunNeeds(config(*changes), PARAMETERS)


def parts(actor, unit: int = PARAMETERS) -> dict[str, float]:
    return {part.what: part.size / unit for part in actor.parts if not part.what.startswith("process")}


GAE = ("--algorithm.advantage", "gae")
KL = ("--algorithm.kl_coefficient", "0.1")
HALF = ("--model.dtype", "bfloat16")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), {"parameters": 4, "gradients": 4, "optimizer states": 8}),
        (GAE, {"parameters": 8, "gradients": 8, "optimizer states": 16}),
        (KL, {"parameters": 4, "gradients": 4, "optimizer states": 8, "reference policy": 4}),
        ((*GAE, *HALF), {"parameters": 4, "gradients": 8, "optimizer states": 24}),
        ((*KL, *HALF), {"parameters": 2, "gradients": 4, "optimizer states": 12, "reference policy": 2}),
        (("--model.dtype", "float64"), {"parameters": 8, "gradients": 8, "optimizer states": 16}),
    ],
)
def test_a_trainer_holds_every_model_with_its_gradients_and_states(changes, expected):
    assert parts(needs(*changes).trainer(1)) == expected


def test_optimizer_states_are_sharded_over_the_trainers_and_nothing_else_is():
    assert parts(needs("--allocation.trainer", "4").trainer(4)) == {"parameters": 4, "gradients": 4, "optimizer states": 2}


def test_trainers_that_share_a_model_hold_their_share_of_it():
    sharing = needs("--allocation.trainer", "4", "--allocation.tensor_parallel", "2", "--allocation.mode", "'off'",
                    "--executor.method", "tree", *KL)  # fmt: skip
    assert parts(sharing.trainer(4)) == {
        "parameters": 2, "gradients": 2, "optimizer states": 2, "reference policy": 2
    }  # fmt: skip


def test_a_rollout_worker_holds_parameters_and_cache():
    assert parts(needs().rollout(), 1) == {"parameters": 4 * PARAMETERS, "K/V cache": 1 << 29}


def test_on_gpus_models_take_device_memory_and_the_host_only_what_travels():
    run = needs("--model.device", "cuda", *HALF)
    assert {part.what for part in run.trainer(1).parts if part.place is Place.MEMORY} == {"process"}
    assert run.trainer(1).size(Place.DEVICE) == (2 + 4 + 12) * PARAMETERS
    processes = run.rollout().size(Place.MEMORY) + run.trainer(1).size(Place.MEMORY)
    assert run.on_node(1, 1, all_trainers=1, driver=False).memory == processes + 2 * 2 * PARAMETERS


def test_new_weights_lie_once_in_the_object_store_and_where_engines_are_once_in_shared_memory():
    run = needs()
    assert run.on_node(3, 0, all_trainers=1, driver=False).shared_memory == 4 * PARAMETERS
    assert run.on_node(0, 1, all_trainers=1, driver=False).shared_memory == 0
    beside = run.on_node(0, 1, all_trainers=1, driver=False).memory - run.trainer(1).size(Place.MEMORY)
    assert beside == 4 * PARAMETERS
    directory = needs("--weights.transport", "directory")
    assert directory.on_node(3, 1, all_trainers=1, driver=False).shared_memory == 0


def test_a_node_needs_what_is_placed_on_it_and_the_driver_only_where_it_runs():
    run = needs("--allocation.rollout", "3", "--allocation.trainer", "2")
    node = run.most_on_node(2, driver=False, here=(2, 0))
    assert {actor.who: actor.count for actor in node.actors} == {"rollout worker": 2, "new weights": 1}
    driver = run.most_on_node(0, driver=True, here=(0, 0))
    assert [actor.who for actor in driver.actors] == ["what runs once"]
    everything = run.most_on_node(5, driver=True)
    assert {actor.who: actor.count for actor in everything.actors} == {
        "what runs once": 1, "rollout worker": 3, "trainer": 2, "new weights": 1
    }  # fmt: skip


def test_where_accelerators_move_a_node_needs_the_most_that_it_can_come_to_have_and_room_for_what_trainers_leave():
    large = 1 << 30
    moving = RunNeeds(
        config("--allocation.rollout", "3", "--allocation.trainer", "1", "--allocation.mode", "auto"), large
    )
    node = moving.most_on_node(2, driver=False, here=(2, 0))
    by_who = {actor.who: actor.count for actor in node.actors}
    # More than two trainers, which share optimizer states, and two rollout workers, as at the start.
    assert by_who == {"rollout worker": 1, "trainer": 1, "new weights": 1, "move of a trainer": 1}
    for rollouts, trainers, of in [(2, 0, 1), (0, 2, 2), (1, 1, 3)]:
        assert moving.on_node(rollouts, trainers, all_trainers=of, driver=False).memory < node.memory
    (left,) = (actor for actor in node.actors if actor.who == "move of a trainer")
    assert left.size(Place.MEMORY) == (4 + 12) * large


def test_a_side_that_keeps_a_minimum_bounds_what_a_node_can_come_to_have():
    moving = RunNeeds(
        config("--allocation.rollout", "4", "--allocation.trainer", "1", "--allocation.mode", "auto",
               "--allocation.min_rollout", "3"), 1 << 30
    )  # fmt: skip
    (trainers,) = (actor.count for actor in moving.most_on_node(5, driver=False).actors if actor.who == "trainer")
    assert trainers == 2


def test_what_runs_already_is_not_asked_for_again():
    before, after = needs(), RunNeeds(config(), PARAMETERS, started=True)
    assert after.driver().size(Place.MEMORY) < before.driver().size(Place.MEMORY)
    processes = RunNeeds(config("--environment.processes", "8"), PARAMETERS)
    assert processes.driver().size(Place.MEMORY) > before.driver().size(Place.MEMORY)


def test_a_users_model_that_is_served_beside_the_driver_counts():
    run = RunNeeds(config(), PARAMETERS, user_parameters=2 * PARAMETERS)
    more = run.most_on_node(2, driver=True).memory - needs().most_on_node(2, driver=True).memory
    assert more > 8 * PARAMETERS
    assert run.most_on_node(2, driver=False).memory == needs().most_on_node(2, driver=False).memory


def test_one_more_accelerator_may_become_a_worker_or_a_trainer_whichever_needs_more():
    alone = needs("--allocation.trainer", "2", "--rollout.engine.kv_cache_gib", "0.01")
    alone = RunNeeds(alone.config, 1 << 30)
    assert alone.of_one() == alone.on_node(0, 1, all_trainers=2, driver=False)
    cached = needs("--rollout.engine.kv_cache_gib", "40")
    assert cached.of_one() == cached.on_node(1, 0, all_trainers=1, driver=False)
