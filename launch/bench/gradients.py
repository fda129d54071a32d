"""`python -m launch.bench gradients`: how far the tree's loss and gradients are from those of plain training."""

from __future__ import annotations

import argparse
import sys

import torch

from launch.bench.support.options import add_model_options, objective, random_model
from launch.bench.support.output import Output
from launch.bench.support.tree_files import read_tree_file
from launch.command import Parser, number, place, whole, wholes
from rl_system.config.executor import ExecutorConfig
from rl_system.executor import StepResult, make_executor

TOLERANCES = {"float64": 1e-9, "float32": 2e-6, "bfloat16": 5e-2}


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    tree = read_tree_file(options.trees)
    model = random_model(options, tree.vocabulary, int(tree.batch.lengths().max()), options.dtype)
    loss = objective(options.objective, options.entropy_coefficient)
    output = Output(options.json)
    tolerance = TOLERANCES[options.dtype] if options.tolerance is None else options.tolerance

    def run(config: ExecutorConfig) -> tuple[StepResult, torch.Tensor]:
        model.zero_grad(set_to_none=True)
        executor = make_executor(model, config)
        for buffer in executor.gradients.values():
            buffer.zero_()
        result = executor.step(tree.batch, loss)
        return result, torch.cat([
            executor.gradients.get(name, parameter.grad).double().flatten() for name, parameter in model.named_parameters()
        ])

    reference, expected = run(ExecutorConfig(method=options.reference))
    passed = True
    for size in options.block_tokens:
        result, gradient = run(ExecutorConfig(method="tree", block_tokens=size, retain_tokens=options.retain_tokens))
        error = float((gradient - expected).norm() / expected.norm().clamp_min(1e-12))
        loss_error = abs(result.loss - reference.loss) / abs(reference.loss)
        within = error <= tolerance and loss_error <= tolerance
        passed = passed and within
        output({
            "objective": options.objective,
            "dtype": options.dtype,
            "reference": options.reference,
            "block_tokens": size,
            "retain_tokens": options.retain_tokens,
            "method": result.report.method,
            "blocks": result.report.blocks,
            "relative_error": error,
            "loss_relative_error": loss_error,
            "tolerance": tolerance,
            "within_tolerance": within,
        })
    if not passed:
        print(f"an error is above the tolerance of {tolerance:g}", file=sys.stderr)
    return 0 if passed else 1


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m launch.bench gradients", description=__doc__)
    parser.add_argument("--trees", type=place(), required=True, help="a tree file")
    parser.add_argument("--dtype", choices=list(TOLERANCES), default="float64")
    parser.add_argument("--block-tokens", type=wholes(at_least=0), default=[0], help="sizes to try; 0: no limit")
    parser.add_argument("--retain-tokens", type=whole(at_least=0), default=0)
    parser.add_argument("--objective", default="ppo")
    parser.add_argument("--entropy-coefficient", type=number(at_least=0), default=0.0)
    parser.add_argument("--reference", choices=["dense", "packed"], default="dense")
    parser.add_argument("--tolerance", type=number(above=0), help="largest relative error; by default fits the dtype")
    parser.add_argument("--json", action="store_true")
    add_model_options(parser)
    return parser.parse_args(arguments)
