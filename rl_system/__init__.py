"""The library: everything that decides or computes. Imports neither ray nor vllm, so all of it runs in one process."""
