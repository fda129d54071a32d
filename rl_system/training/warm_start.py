"""The supervised phase before RL: a model that writes tool calls well enough for some rollouts to succeed.

It trains on demonstrations through the executor, the optimizer and the loss weights that RL uses, and stops early on
purpose: a model that solves everything leaves nothing to learn. The result is a model directory in the cache, under
a name made from everything that went into it.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from rl_system.algorithms import set_loss_weights
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.config.run import RunConfig
from rl_system.config.warm_start import WarmStartConfig
from rl_system.executor.host_memory import give_back_freed_memory
from rl_system.machine.fit import check_fit, settings_of
from rl_system.machine.needs import RunNeeds
from rl_system.machine.resources import Resources, usable_processors
from rl_system.output_place import require_writable
from rl_system.records import Sequence, TrainBatch
from rl_system.training.checkpoint_directory import file_checksum
from rl_system.training.complete_directory import complete_directory
from rl_system.training.demonstrations import demonstration_sequences
from rl_system.training.learner import Learner
from rl_system.training.loading import load_model, load_tokenizer
from rl_system.training.model_files import check_saving, save_model
from rl_system.training.parameter_files import count_parameters, parameter_files
from rl_system.training.prepared import cache_directory, model_directory

RECIPE = 1
"""Raised whenever the training itself changes, so that older results are made anew."""


def ensure_warm_start(config: RunConfig, report: Callable[[str], None] = print) -> Path:
    """The warm-started model's directory, trained now unless the cache holds it. report: told of the progress."""
    tokenizer = load_tokenizer(config.model)
    demonstrations = demonstration_sequences(config, tokenizer)
    name = f"warm-start-{fingerprint(config, demonstrations, tokenizer.chat_template)}"
    directory = cache_directory() / "models" / name
    if directory.is_dir():
        report(f"warm start: in the cache, {directory}")
        return directory
    require_writable(directory.parent, "XDG_CACHE_HOME, where the warm start is kept")
    report(f"warm start: up to {config.warm_start.steps} updates on demonstrations of {len(demonstrations)} tasks")
    needs = RunNeeds(config, count_parameters(model_directory(config.model.path)))
    check_fit(needs.warm_start(), Resources.look(), "on this machine for the warm start", settings_of(config))
    torch.set_num_threads(min(torch.get_num_threads(), usable_processors()))  # torch does not know of a container's quota
    model = load_model(config.model)
    check_saving(model, tokenizer)
    train(model, config, demonstrations, report)
    with complete_directory(directory) as staging:
        save_model(model, tokenizer, staging)
    del model  # this process goes on as the run's driver
    gc.collect()  # a model and what runs it refer to each other
    give_back_freed_memory()
    report(f"warm start: {directory}")
    return directory


def fingerprint(config: RunConfig, demonstrations: list[list[Sequence]], chat_template: str) -> str:
    """Sixteen hexadecimal digits of everything that the result depends on."""
    source = model_directory(config.model.path)
    digest = hashlib.sha256()
    settings = {
        "recipe": RECIPE,
        "warm_start": config.warm_start.model_dump(mode="json", exclude={"enabled"}),
        "optimizer": _optimizer(config).model_dump(mode="json"),
        "dtype": config.model.dtype,
        "temperature": config.rollout.sampling.temperature,
        "chat_template": chat_template,
        "model": {file.name: file_checksum(file) for file in parameter_files(source)},
        "model_config": json.loads((source / "config.json").read_text()),
    }
    digest.update(json.dumps(settings, sort_keys=True).encode())
    for sequences in demonstrations:
        for sequence in sequences:
            digest.update(sequence.token_ids.tobytes() + sequence.trained.tobytes())
    return digest.hexdigest()[:16]


def train(
    model: PreTrainedModel, config: RunConfig, demonstrations: list[list[Sequence]], report: Callable[[str], None]
) -> Learner:
    """Train `model` in place until `stop_probability` is reached or `steps` are done."""
    settings = config.warm_start
    learner = Learner(
        model,
        algorithm=AlgorithmConfig(objective="sft"),
        executor=config.executor,
        optimizer=_optimizer(config),
        updates=settings.steps,
        temperature=config.rollout.sampling.temperature,
    )
    for step, (batch, fresh) in enumerate(_batches(demonstrations, settings), 1):
        metrics = learner.update(batch)
        probability = demonstration_probability(batch, learner.last_logprobs[0])
        report(
            f"warm start: update {step}, loss {metrics['train/loss']:.3f}, samples a whole "
            f"{'new' if fresh else 'known'} demonstration with probability {probability:.2f} "
            f"({metrics['perf/train_s']:.1f} s)"
        )
        if fresh and probability >= settings.stop_probability:
            break
    return learner


def demonstration_probability(batch: TrainBatch, logprobs: np.ndarray) -> float:
    """Mean over demonstrations of the probability that a policy with `logprobs` [sequence_tokens] samples it as it is.

    A lower bound on the success rate, which other solutions also add to. `batch.group_ids` tells demonstrations apart.
    """
    group_of_token = np.repeat(batch.group_ids, batch.lengths())
    groups, group_of_token = np.unique(group_of_token, return_inverse=True)
    total = np.bincount(group_of_token, weights=np.where(batch.trained, logprobs, 0.0), minlength=len(groups))
    return float(np.exp(total).mean())


def _batches(demonstrations: list[list[Sequence]], settings: WarmStartConfig) -> Iterator[tuple[TrainBatch, bool]]:
    """The batches of `settings.steps` updates, and whether none of their demonstrations came before.

    Every demonstration comes once before any comes again.
    """
    generator = np.random.default_rng(settings.seed)
    count = min(settings.demonstrations_per_step, len(demonstrations))
    waiting: list[int] = []
    for step in range(settings.steps):
        if len(waiting) < count:
            again = generator.permutation(len(demonstrations))
            waiting = waiting + sorted(again, key=waiting.__contains__)  # those still waiting come last
        chosen, waiting = waiting[:count], waiting[count:]
        batch = TrainBatch.of(
            [sequence for i in chosen for sequence in demonstrations[i]],
            [int(i) for i in chosen for _ in demonstrations[i]],
        )
        yield set_loss_weights(batch, "token_mean"), (step + 1) * count <= len(demonstrations)


def _optimizer(config: RunConfig) -> OptimizerConfig:
    settings = config.warm_start
    keys = {"learning_rate": settings.learning_rate, "warmup_steps": settings.warmup_steps, "decay": "constant"}
    return config.optimizer.model_copy(update=keys)
