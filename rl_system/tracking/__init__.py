"""What a run leaves behind: metrics, events, W&B charts, a progress display and, at the end, a report.

`Tracker` is the one object a run talks to; `names` lists every metric with what it means; `measures` computes those
that come from episodes and batches; `report` and `compare` draw what is on disk and need nothing else.
"""
