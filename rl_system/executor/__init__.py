from rl_system.executor.interface import ExecutionReport, Executor, StepResult
from rl_system.executor.make import make_executor
from rl_system.tree.cost_model import CostModel

__all__ = ["CostModel", "ExecutionReport", "Executor", "StepResult", "make_executor"]
