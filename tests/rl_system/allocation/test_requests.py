import pytest

from rl_system.allocation.decision import Move
from rl_system.allocation.requests import FOLDER, Taken, make_request, take_requests, withdraw


def test_requests_are_taken_once_in_the_order_in_which_they_were_made(tmp_path):
    made = [make_request(tmp_path, Move.TO_ROLLOUT, 2), make_request(tmp_path, Move.TO_TRAINER, 1)]
    assert take_requests(tmp_path).requests == made
    assert take_requests(tmp_path) == Taken()


def test_a_run_that_was_asked_nothing_has_nothing_to_take(tmp_path):
    assert take_requests(tmp_path) == Taken()


def test_a_request_that_is_still_being_written_is_not_seen(tmp_path):
    request = make_request(tmp_path, Move.TO_ROLLOUT, 1)
    path = tmp_path / FOLDER / f"{request.name}.json"
    path.rename(path.with_name(f".{request.name}"))
    assert take_requests(tmp_path) == Taken()


def test_a_request_can_be_withdrawn_until_it_is_taken(tmp_path):
    first, second = (make_request(tmp_path, Move.TO_ROLLOUT, 1) for _ in range(2))
    assert withdraw(tmp_path, first)
    assert take_requests(tmp_path).requests == [second]
    assert not withdraw(tmp_path, second)


@pytest.mark.parametrize("content", ["{", "[]", '{"move": "sideways", "count": 1}', '{"move": "to_rollout"}'])
def test_a_file_that_is_no_request_is_refused_once(content, tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1.json").write_text(content)
    [(name, fault)] = take_requests(tmp_path).faults.items()
    assert name == "1" and "is no request" in fault
    assert take_requests(tmp_path) == Taken()


def test_requests_beside_a_file_that_is_none_are_not_lost(tmp_path):
    before = make_request(tmp_path, Move.TO_ROLLOUT, 1)
    (tmp_path / FOLDER / f"{before.name}-x.json").write_bytes(b"\xff{")
    after = make_request(tmp_path, Move.TO_TRAINER, 1)
    taken = take_requests(tmp_path)
    assert taken.requests == [before, after] and list(taken.faults) == [f"{before.name}-x"]
