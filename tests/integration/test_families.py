"""The whole loop with a tiny random model of every family: sampled, trained, published, saved, and served again."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.integration.conftest import ROOT
from tests.integration.test_run import read
from tests.models import FAMILIES, save_tiny_family

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]
FINISH_S = 450


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_goes_round_the_whole_loop_and_its_checkpoint_is_loaded_by_everybody(
    family: str, submit, command, tmp_path
) -> None:
    model = save_tiny_family(family, tmp_path / "model")
    settings = {"model__path": model, "evaluation__before": "false", "evaluation__after": "false"}
    output, _ = submit(family, command(**settings)).communicate(timeout=FINISH_S)
    run = tmp_path / "tau2_mock_cpu"
    assert f"done: {run}" in output, output

    lines = read(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["train/grad_norm"] > 0 for line in lines)
    # The first line may be written before the first update reached the workers; all later ones have compared.
    assert all(line["rollout/logprob_gap"] < 1e-4 for line in lines[1:])
    assert all(line["rollout/worker_replacements"] == 0 for line in lines)

    checkpoint = run / "checkpoints" / "step_3" / "model"
    before, trained = (AutoModelForCausalLM.from_pretrained(path) for path in (model, checkpoint))
    assert not any(torch.equal(a, b) for a, b in zip(trained.parameters(), before.parameters(), strict=True))
    words = f"--domain mock --split base --policy {checkpoint} --max-tasks 1 --json --output {tmp_path / 'played'}"
    words += " --model.max_model_len 1536 --rollout.sampling.max_new_tokens 8 --rollout.max_episode_tokens 16"
    words += " --rollout.engine.kv_cache_gib 0.1"
    played = subprocess.run(
        [sys.executable, "-m", "launch.evaluate", *words.split()],
        cwd=ROOT, capture_output=True, text=True, timeout=FINISH_S,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout.splitlines()[-1])["ended"] == {"max_tokens": 1}
