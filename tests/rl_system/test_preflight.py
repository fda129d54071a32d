import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_system.config.load import build_config
from rl_system.errors import UserError
from rl_system.preflight import GIB, check_memory, count_parameters, find_state
from rl_system.training.checkpoint_directory import Checkpoint, write_manifest
from rl_system.training.run_state import RunState

PARAMETERS = 1 << 22


@pytest.mark.parametrize(
    ("changes", "bytes_of_a_parameter"),
    [
        ([], 4 + 12),
        (["--algorithm.advantage", "gae"], 2 * (4 + 12)),
        (["--algorithm.kl_coefficient", "0.1"], 4 + 12 + 4),
        (["--algorithm.advantage", "gae", "--model.dtype", "bfloat16"], 2 * (2 + 16)),
    ],
)
def test_the_memory_of_a_trainer_counts_every_model_that_it_holds(tmp_path, changes, bytes_of_a_parameter):
    save_file({"weight": np.zeros((PARAMETERS,), np.float32)}, tmp_path / "model.safetensors")

    def needed(trainers: int) -> float:
        config = build_config({"name": "run"}, [*changes, "--allocation.trainer", str(trainers)])
        return check_memory(config, count_parameters(tmp_path))

    process = needed(2) - needed(1) - PARAMETERS * bytes_of_a_parameter / GIB
    assert process == pytest.approx(0.6)


def test_a_run_that_moves_accelerators_counts_the_split_that_needs_most_and_what_trainers_hand_over(tmp_path):
    save_file({"weight": np.zeros((PARAMETERS,), np.float32)}, tmp_path / "model.safetensors")

    def needed(*changes: str) -> float:
        config = build_config({"name": "run"}, ["--rollout.engine.kv_cache_gib", "0.01", *changes])
        return check_memory(config, count_parameters(tmp_path))

    most_trainers = needed("--allocation.rollout", "1", "--allocation.trainer", "3")
    moving = needed("--allocation.rollout", "3", "--allocation.trainer", "1", "--allocation.mode", "auto")
    assert moving == pytest.approx(most_trainers + PARAMETERS * (4 + 12) / GIB)


@pytest.mark.parametrize(("saved", "configured"), [("gae", "grpo"), ("grpo", "gae")])
def test_resuming_with_or_without_a_critic_against_the_checkpoint_is_refused_before_anything_starts(
    tmp_path, saved, configured
):
    path = tmp_path / "run" / "checkpoints" / "step_2"
    values, blobs = RunState(2, {}, {}, {}).parts()
    (path / "state").mkdir(parents=True)
    for name, content in blobs.items():
        (path / "state" / name).write_bytes(content)
    write_manifest(path, Checkpoint(path, "run", 2, values, {"critic": {}} if saved == "gae" else {}))

    def resumed(advantage: str) -> RunState | None:
        config = build_config({"name": "run"}, ["--output", str(tmp_path), "--algorithm.advantage", advantage])
        return find_state(config, resume=True)

    assert resumed(saved).step == 2
    with pytest.raises(UserError, match=r"critic.*algorithm\.advantage"):
        resumed(configured)
