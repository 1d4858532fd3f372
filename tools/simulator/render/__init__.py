"""Renders drives with a known ground truth in the format of recorded segments."""
