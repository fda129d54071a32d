"""The viewer: what runs left, and leave, on disk, shown in a browser. It reads run directories and writes nothing into them."""
