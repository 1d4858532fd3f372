"""Playback of drives in real time, for our own daemon processes or any other subscriber."""
