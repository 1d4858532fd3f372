"""The driving program: warp, queues, vision and policy as one graph."""
