"""The prefix tree of episodes, for drawing: which tokens they share, where they part, and what each branch earned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_system.records import Sequence as TokenSequence
from rl_system.records import TrainBatch
from rl_system.tree.prefix_tree import PrefixTree, build_tree
from rl_system.viewer.rows import number_of
from rl_system.viewer.token_texts import TokenTexts
from rl_system.viewer.transcripts import whole_sequence

SHOWN_TOKENS = 40
"""Tokens of a node whose text is told."""
SHOWN_EPISODES = 24


def draw_tree(
    lines: Sequence[tuple[str, dict[str, Any]]], texts: TokenTexts | None, root: int | None, budget: int
) -> dict[str, Any] | None:
    """The largest `budget` nodes below `root` (None: of all) of the tree over the sequences of episodes, by key and line;
    None where `root` is no node or there is no sequence.

    Of a node: `from`, its first token's position in every sequence through it; `tokens`; `first` and `sequences`, which
    of the sequences in depth-first order pass through it; `advantage`, their mean; `left_out`, its children that are not
    among the nodes.
    """
    keys, sequences, advantages = _sequences(lines)
    if not sequences:
        return None
    batch = TrainBatch.of([_as_sequence(ids) for ids in sequences])
    tree = build_tree(batch)
    if root is not None and not 0 <= root < len(tree.start):
        return None
    size = tree.end - tree.start
    inside = np.arange(len(size))
    if root is not None:
        inside = inside[(tree.start >= tree.start[root]) & (tree.end <= tree.end[root])]
    # A parent has more rows below it than its children, and stands before them: whatever is kept hangs together.
    kept = np.sort(inside[np.argsort(-size[inside], kind="stable")[:budget]])
    parents = tree.node_parent[np.setdiff1d(inside, kept)]
    hidden = np.bincount(parents[parents >= 0], minlength=len(size))
    ends = tree.rows[batch.offsets[1:] - 1][tree.order]
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(advantages)[tree.order])])
    nodes = []
    for node in kept.tolist():
        first, last = np.searchsorted(ends, [tree.start[node], tree.end[node]]).tolist()
        ids = tree.token_ids[tree.start[node] : min(tree.stop[node], tree.start[node] + SHOWN_TOKENS)].tolist()
        nodes.append(
            {
                "id": node,
                "parent": int(tree.node_parent[node]) if node != root else -1,
                "from": int(tree.depth[tree.start[node]]),
                "tokens": int(tree.stop[node] - tree.start[node]),
                "first": first,
                "sequences": last - first,
                "advantage": round((sums[last] - sums[first]) / (last - first), 9),
                "text": "".join(texts.of(ids)) if texts else " ".join(map(str, ids)),
                "episodes": list(dict.fromkeys(keys[each] for each in tree.order[first : min(last, first + SHOWN_EPISODES)])),
                "left_out": int(hidden[node]),
            }
        )
    return {
        "sequences": len(sequences),
        "sequence_tokens": batch.sequence_tokens,
        "unique_tokens": len(tree),
        "root": root,
        "path": _path(tree, root),
        "all_nodes": len(tree.start),
        "nodes": nodes,
    }


def _sequences(lines: Sequence[tuple[str, dict[str, Any]]]) -> tuple[list[str], list[list[int]], np.ndarray]:
    """Of each episode the sequences of the turns that no later turn extends: a linear episode has one."""
    keys, sequences, advantages = [], [], []
    for key, line in lines:
        turns = [each for each in line.get("turns", []) if isinstance(each, dict)]
        extended = {each.get("prompt_extends") for each in turns}
        for turn in range(len(turns)):
            ids = [] if turn in extended else [each["id"] for each in whole_sequence(line, turn)]
            if ids and min(ids) >= 0 and max(ids) < 1 << 31:
                keys.append(key)
                sequences.append(ids)
                advantages.append(number_of(line.get("advantage")) or 0.0)
    return keys, sequences, np.array(advantages)


def _as_sequence(ids: list[int]) -> TokenSequence:
    zeros = np.zeros(len(ids))
    return TokenSequence(np.array(ids, np.int32), zeros.astype(bool), zeros, zeros, zeros, zeros)


def _path(tree: PrefixTree, node: int | None) -> list[int]:
    """The nodes above `node`, from the root of its tree on."""
    found: list[int] = []
    above = -1 if node is None else int(tree.node_parent[node])
    while above >= 0:
        found.append(above)
        above = int(tree.node_parent[above])
    return found[::-1]
