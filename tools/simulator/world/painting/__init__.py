"""Pictures of the simulated world: ground, sky, things on and along the road."""
