from rl_system.tree.cost_model import CostModel, ModelShape, Work
from rl_system.tree.partition import partition
from rl_system.tree.prefix_tree import PrefixTree, build_tree

__all__ = ["CostModel", "ModelShape", "PrefixTree", "Work", "build_tree", "partition"]
