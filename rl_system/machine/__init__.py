"""What this process may use of its machine, and what a run needs of a node."""
