"""Reads W&B's own files, as `wandb sync` does: a log of records in blocks, each record a message of W&B's protocol."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

HEADER, BLOCK, FRAME = 7, 32768, struct.Struct("<IHB")
FULL, FIRST, LAST = 1, 2, 4


def records(path: Path) -> Iterator[Any]:
    """Whole records of a `.wandb` file; what a kill cut off at its end is left out."""
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, parts = HEADER, b""
    while at + FRAME.size <= len(content):
        if BLOCK - at % BLOCK < FRAME.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = FRAME.unpack_from(content, at)
        body = content[at + FRAME.size : at + FRAME.size + length]
        if kind == 0 or len(body) < length:
            return
        parts = body if kind in (FULL, FIRST) else parts + body
        at += FRAME.size + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record


def rows(path: Path) -> list[dict[str, Any]]:
    """What was logged, in order."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def rows_to_sync(run: Path) -> list[dict[str, Any]]:
    """What `wandb sync` would send of a run's directory, in the order in which it does."""
    return [row for path in sorted((run / "wandb").glob("offline-run-*/*.wandb")) for row in rows(path)]


def steps_to_sync(run: Path) -> list[int]:
    """The steps among them; rows of evaluations are left out."""
    return [row["step"] for row in rows_to_sync(run) if not any(name.startswith("eval/") for name in row)]
