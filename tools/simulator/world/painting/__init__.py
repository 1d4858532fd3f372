"""Renders pictures of the simulated world: ground, sky, and objects on and along the road."""
