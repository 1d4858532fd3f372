"""Drives played: in this process as fast as the device allows, or live on a real bus."""
