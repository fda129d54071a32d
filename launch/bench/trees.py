"""`python -m launch.bench trees`: write a tree file of the shape that a batch of conversations has.

All sequences begin with one policy, the rollouts of a task with one ticket; then each goes its own way, turn by turn.
With `--forks`, so many of a rollout's turns end in an answer that the next turn's prompt does not repeat, as templates
that drop earlier thinking do: each is a sequence of its own. Token ids are random: only lengths and sharing count here.
"""

from __future__ import annotations

import argparse

import numpy as np

from launch.bench.support.output import Output
from launch.command import Parser, place, seed, whole
from rl_system.errors import UserError
from rl_system.strict_json import to_json

VOCABULARY = 2048


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    random = np.random.default_rng(options.seed)
    sequences: list[list[int]] = []
    starts: list[int] = []
    policy = _draw(random, options.policy)
    for _ in range(options.tasks):
        prompt = policy + _draw(random, options.ticket)
        for _ in range(options.rollouts):
            for sequence in _rollout(random, prompt, options):
                sequences.append(sequence)
                starts.append(len(prompt))
    content = {
        "name": options.out.stem, "vocab_size": VOCABULARY, "sequences": sequences, "response_start": starts,
    }  # fmt: skip
    try:
        options.out.write_text(to_json(content))
    except OSError as error:
        raise UserError(f"--out {options.out} cannot be written: {error.strerror}") from None
    output = Output(options.json)
    output({"file": str(options.out), "sequences": len(sequences), "tokens": sum(map(len, sequences))})
    return 0


def _rollout(random: np.random.Generator, prompt: list[int], options: argparse.Namespace) -> list[list[int]]:
    """The sequences of one rollout: the forks, and the conversation as it stands at its end."""
    made = []
    conversation = list(prompt)
    for turn in range(options.turns):
        if turn < options.forks:
            made.append(conversation + _draw(random, _around(random, options.turn)))
        conversation += _draw(random, _around(random, options.turn))
    return [*made, conversation]


def _around(random: np.random.Generator, mean: int) -> int:
    """A length with that mean, between half and one and a half of it."""
    return int(random.integers(mean // 2, mean + mean // 2 + 1))


def _draw(random: np.random.Generator, tokens: int) -> list[int]:
    return random.integers(0, VOCABULARY, tokens).tolist()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m launch.bench trees", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=place(), required=True, help="the file to write")
    parser.add_argument("--tasks", type=whole(at_least=1), default=44)
    parser.add_argument("--rollouts", type=whole(at_least=1), default=8, help="of each task")
    parser.add_argument("--turns", type=whole(at_least=1), default=24)
    parser.add_argument("--forks", type=whole(at_least=0), default=0, help="turns that end in a sequence of their own")
    parser.add_argument("--policy", type=whole(at_least=1), default=6000, help="tokens that all sequences share")
    parser.add_argument("--ticket", type=whole(at_least=0), default=400, help="tokens that the rollouts of a task share")
    parser.add_argument("--turn", type=whole(at_least=1), default=400, help="mean tokens of a turn")
    parser.add_argument("--seed", type=seed(), default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)
