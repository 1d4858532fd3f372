"""Pictures of the simulated world: ground, sky, things on and beside the road."""
