import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_system.config.load import build_config
from rl_system.preflight import GIB, check_memory, count_parameters

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
