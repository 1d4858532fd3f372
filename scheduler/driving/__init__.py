"""Builds driving programs: recognizes models, then joins warp, queues and models in one graph."""
