from rl_system.tree.prefix_tree import PrefixTree, build_tree

__all__ = ["PrefixTree", "build_tree"]
