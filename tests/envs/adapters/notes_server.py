"""An MCP server with a state, for tests."""

import os
import sys

from mcp.server.mcpserver import MCPServer

app = MCPServer("notes", log_level="CRITICAL")
notes: list[str] = []


@app.tool()
def add_note(text: str) -> str:
    """Add a note."""
    notes.append(text)
    return f"{len(notes)} notes"


@app.tool()
def list_notes() -> str:
    """All notes."""
    return "; ".join(notes)


@app.tool()
def broken() -> str:
    """Raises."""
    raise ValueError("no such thing")


@app.tool()
def die() -> str:
    """Ends the server."""
    print("the disk is gone", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    app.run("stdio")
