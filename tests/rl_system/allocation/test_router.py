import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.router import NoHealthyWorker, Router


def test_an_episode_keeps_to_its_worker() -> None:
    router = Router([0, 1, 2])
    first = {episode: router.assign(episode) for episode in range(9)}
    for episode in [4, 4, 0, 8, 3, 4]:
        assert router.assign(episode) == first[episode]
    assert [router.load(worker) for worker in router.workers] == [3, 3, 3]


def test_new_episodes_go_to_the_least_loaded_worker_and_ties_to_the_lowest_index() -> None:
    router = Router([2, 0, 1])
    assert [router.assign(episode) for episode in "abcd"] == [0, 1, 2, 0]
    router.release("b")
    assert router.assign("e") == 1


def test_episodes_of_a_removed_worker_move_and_do_not_move_back() -> None:
    router = Router([0, 1])
    for episode in range(6):
        router.assign(episode)
    router.remove(1)
    assert {router.assign(episode) for episode in range(6)} == {0}
    router.add(1)
    assert {router.assign(episode) for episode in range(6)} == {0}
    assert router.assign("new") == 1


def test_an_episode_that_ends_after_its_worker_was_removed_is_not_counted_on_the_next_of_that_index() -> None:
    router = Router([0])
    router.assign("a")
    router.remove(0)
    router.add(0)
    router.release("a")
    assert router.load(0) == 0


def test_adding_a_worker_twice_forgets_none_of_its_episodes() -> None:
    router = Router([0])
    router.assign("a")
    router.add(0)
    assert router.load(0) == 1


def test_without_a_healthy_worker_nothing_is_routed() -> None:
    router = Router([0])
    router.remove(0)
    router.remove(7)
    with pytest.raises(NoHealthyWorker):
        router.assign("a")


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_routes_lead_to_healthy_workers_only_and_the_same_events_give_the_same_routes(seed: int, workers: int) -> None:
    def play() -> list[int]:
        chance, router, healthy, taken = random.Random(seed), Router(range(workers)), set(range(workers)), []
        for _ in range(60):
            event = chance.choice(["turn", "turn", "turn", "end", "remove", "add"])
            worker, episode = chance.randrange(workers), f"episode {chance.randrange(12)}"
            if event == "turn" and healthy:
                taken.append(router.assign(episode))
                assert taken[-1] in healthy
            elif event == "end":
                router.release(episode)
            elif event == "remove":
                router.remove(worker)
                healthy.discard(worker)
            elif event == "add":
                router.add(worker)
                healthy.add(worker)
            assert router.workers == sorted(healthy)
        return taken

    assert play() == play()


def test_an_episode_that_is_moved_goes_to_the_least_loaded_other_worker_and_stays_there() -> None:
    router = Router([0, 1, 2])
    for episode in "abcd":
        router.assign(episode)  # a and d on 0
    router.move("a")
    assert router.assign("a") == 1 and [router.load(worker) for worker in router.workers] == [1, 2, 1]
    router.move("unknown")
    alone = Router([4])
    alone.assign("a")
    alone.move("a")
    assert alone.assign("a") == 4 and alone.load(4) == 1
