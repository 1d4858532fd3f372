"""Ways to look at a drive elsewhere: video with overlays, MCAP, rerun."""
