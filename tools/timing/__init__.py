"""Times of programs and what bounds them: blocks, traces, ceilings, the roofline."""
