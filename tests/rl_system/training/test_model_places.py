"""Which directory of a run's checkpoints is the model."""

import json

import pytest

from rl_system.errors import UserError
from rl_system.training.prepared import model_directory


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_checkpoint_named_without_its_model_is_told_the_models_directory(tmp_path, ending):
    model = tmp_path / "checkpoints" / "step_2" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({}))
    with pytest.raises(UserError) as error:
        model_directory(f"{model.parent}{ending}")
    assert str(error.value).endswith(f"did you mean {model}?")


def test_a_directory_without_any_model_is_told_what_is_wanted(tmp_path):
    with pytest.raises(UserError, match="holds no config.json; give a Hugging Face model directory"):
        model_directory(str(tmp_path))
