"""`python -m launch.bench partition`: how evenly a batch is cut for several trainers, and how much sharing survives.

Beside the contiguous parts, what two ways that ignore the tree make of the same batch: longest first to the part with the
least so far, by sequence tokens and by the tokens that a sequence adds.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable

import numpy as np

from launch.bench.support.options import SIZES
from launch.bench.support.output import Output
from launch.bench.support.tree_files import read_tree_file
from launch.command import Parser, place, whole, wholes
from rl_system.records import TrainBatch
from rl_system.tree import CostModel, ModelShape, build_tree, partition
from rl_system.tree.partition import SequenceCosts
from rl_system.tree.prefix_tree import neighbour_prefixes, sorted_sequences


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    tree = read_tree_file(options.trees)
    cost_model = CostModel(_shape(options, tree.vocabulary))
    ways: dict[str, Callable[[int], list[np.ndarray]]] = {
        "contiguous": lambda parts: partition(tree.batch, parts, cost_model),
        "longest_first": lambda parts: longest_first(tree.batch.lengths(), parts),
        "longest_first_unique": lambda parts: longest_first(_added_tokens(tree.batch), parts),
    }
    output = Output(options.json)
    unique = len(build_tree(tree.batch))
    for parts in options.parts:
        for way, cut in ways.items():
            began = time.process_time()
            indices = cut(parts)
            cpu_s = time.process_time() - began
            batches = [tree.batch.take(each) for each in indices]
            costs = [_cost(batch, cost_model) for batch in batches]
            tokens = [len(build_tree(batch)) for batch in batches]
            output({
                "parts": parts,
                "way": way,
                "costs": costs,
                "unique_tokens": tokens,
                "imbalance": max(costs) / (sum(costs) / parts),
                "sharing_kept": unique / sum(tokens),
                "cpu_s": cpu_s,
            })
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m launch.bench partition", description=__doc__.split("\n")[0])
    parser.add_argument("--trees", type=place(), required=True, help="a tree file")
    parser.add_argument("--parts", type=wholes(at_least=1), default=[1, 2, 4, 8])
    parser.add_argument("--json", action="store_true")
    for name, default in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=whole(at_least=1), default=default)
    return parser.parse_args(arguments)


def longest_first(sizes: np.ndarray, parts: int) -> list[np.ndarray]:
    """Each sequence, largest first, to the part with the least so far."""
    loads = [(0, part) for part in range(parts)]
    members: list[list[int]] = [[] for _ in range(parts)]
    for index in np.argsort(-sizes, kind="stable"):
        load, part = heapq.heappop(loads)
        members[part].append(int(index))
        heapq.heappush(loads, (load + int(sizes[index]), part))
    return [np.array(each, np.int64) for each in members]


def _added_tokens(batch: TrainBatch) -> np.ndarray:
    """Tokens that each sequence has beyond what it shares with its predecessor in depth-first order."""
    order = sorted_sequences(batch)
    added = np.empty(len(batch), np.int64)
    added[order] = batch.lengths()[order] - neighbour_prefixes(batch, order)
    return added


def _cost(batch: TrainBatch, cost_model: CostModel) -> float:
    order = sorted_sequences(batch)
    return SequenceCosts(batch, order, neighbour_prefixes(batch, order), cost_model).of(0, len(batch))


def _shape(options: argparse.Namespace, vocabulary: int) -> ModelShape:
    attention = options.hidden * options.head_dim * 2 * (options.heads + options.kv_heads)
    return ModelShape(
        layer_parameters=options.layers * (attention + 3 * options.hidden * options.ffn),
        layers=options.layers,
        attention_width=options.heads * options.head_dim,
        hidden=options.hidden,
        vocabulary=vocabulary,
    )
