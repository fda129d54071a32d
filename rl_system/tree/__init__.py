from rl_system.tree.cost_model import CostModel, ModelShape, Work
from rl_system.tree.partition import CutQuality, partition, quality
from rl_system.tree.prefix_tree import PrefixTree, build_tree

__all__ = ["CostModel", "CutQuality", "ModelShape", "PrefixTree", "Work", "build_tree", "partition", "quality"]
