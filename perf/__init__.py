"""Tools that drive the allocator as a serving engine would: `python -m kvdefrag.perf`."""
