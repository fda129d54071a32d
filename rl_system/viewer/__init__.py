"""The viewer: what runs left, and leave, on disk, shown in a browser. It writes nothing into run directories."""
