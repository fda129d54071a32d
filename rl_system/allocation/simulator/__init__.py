"""A discrete-event simulator of the whole pipeline, in which the run's own policy and ledger make the decisions."""

from rl_system.allocation.simulator.drift import Drift, Regime
from rl_system.allocation.simulator.result import SimulationResult
from rl_system.allocation.simulator.run import Simulation, simulate

__all__ = ["Drift", "Regime", "Simulation", "SimulationResult", "simulate"]
