"""What can go wrong in a rollout worker, by what the caller has to do about it."""


class PromptTooLong(ValueError):
    """The request does not fit the model's context. The engine never saw it; the episode ends as MAX_TOKENS."""


class RequestFailed(RuntimeError):
    """The engine could not carry out this one request, and goes on with the others: try it again, elsewhere if possible."""


class WeightsRejected(RuntimeError):
    """An update was refused before the engine was touched: the worker serves its old version as before."""


class EngineBroken(RuntimeError):
    """The engine cannot go on (it died, hangs, or failed halfway through an update): replace the worker."""
