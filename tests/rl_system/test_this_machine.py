import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_system.config.load import build_config
from rl_system.errors import UserError
from rl_system.machine.needs import RunNeeds
from rl_system.machine.resources import Resources
from rl_system.this_machine import check_memory, run_needs
from tests.rl_system.machine.machines import Machine

PARAMETERS = 1 << 22


@pytest.fixture
def small_machine(tmp_path, monkeypatch) -> Machine:
    """A container of 8 GiB on a large machine."""
    machine = Machine(tmp_path / "machine", available=500).v2("/").memory("", limit=8, used=1)
    looked = Resources.look
    monkeypatch.setattr(Resources, "look", classmethod(lambda cls: looked(machine.root)))
    (machine.root / "dev/shm").mkdir(parents=True)
    return machine


def needs_of(parameters: int, *changes: str) -> RunNeeds:
    return RunNeeds(build_config({"name": "run"}, list(changes)), parameters)


def test_a_users_model_that_the_run_serves_itself_counts(tmp_path, monkeypatch):
    save_file({"weight": np.zeros((PARAMETERS,), np.float32)}, tmp_path / "model.safetensors")
    monkeypatch.setattr("rl_system.this_machine.model_directory", lambda path: tmp_path)
    user = ["--environment.user.kind", "llm", "--environment.user.model", str(tmp_path)]
    assert run_needs(build_config({"name": "run"}, user), 1).user_parameters == PARAMETERS
    elsewhere = [*user, "--environment.user.api_base", "http://127.0.0.1:1/v1"]
    assert run_needs(build_config({"name": "run"}, elsewhere), 1).user_parameters == 0


def test_a_run_alone_on_a_machine_is_held_to_the_containers_limit_with_all_that_it_places(small_machine, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_memory(needs_of(PARAMETERS))
    with pytest.raises(UserError, match=r"on this machine, and 7\.0 GiB are available \(the container or job may take 8\.0 GiB"):
        check_memory(needs_of(1 << 28))


@pytest.mark.parametrize("elsewhere", ["a cluster to join", "GPUs"])
def test_where_accelerators_may_be_on_other_nodes_this_one_is_asked_for_the_driver_alone(
    small_machine, monkeypatch, elsewhere
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    changes = ["--model.device", "cuda"] if elsewhere == "GPUs" else []
    if elsewhere == "a cluster to join":
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    here = check_memory(needs_of(1 << 33, "--allocation.rollout", "40", "--allocation.trainer", "24", *changes))
    assert [actor.who for actor in here.actors] == ["what runs once"]
    small_machine.memory("", limit=2, used=1)
    with pytest.raises(UserError, match=r"on this machine, and 1\.0 GiB"):
        check_memory(needs_of(1 << 33, *changes))
