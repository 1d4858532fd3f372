"""Exports drives for viewing elsewhere: video with overlays, MCAP, rerun."""
