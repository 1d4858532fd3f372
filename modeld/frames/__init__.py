"""Frames of the cameras: received, paired, judged and handed to the model."""
