from rl_system.executor.interface import ExecutionReport, Executor, StepResult
from rl_system.executor.make import make_executor

__all__ = ["ExecutionReport", "Executor", "StepResult", "make_executor"]
