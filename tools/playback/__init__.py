"""Playback of drives: in one process as fast as the device allows, or in real time on a bus."""
