"""Kinds of events that more than their writer looks for."""

EVALUATION = "evaluation"
"""Carries `eval/` metrics."""
STARTED = "start"
"""The run started from nothing; `contents` are the fingerprints of model and chat template."""
FINISHED = "finished"
"""Nothing was left to do after `steps`."""
