from pathlib import Path

import pytest
import torch

from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.training.loading import load_model
from tests.rl_system.training.conftest import make_model


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_model_with_numbers_that_are_none_is_refused_by_name(tmp_path: Path, bad: float) -> None:
    model = make_model(torch.float32)
    config = ModelConfig(path=str(tmp_path), max_model_len=64)
    model.save_pretrained(tmp_path)
    load_model(config)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = bad
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"not finite \(model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(config)
