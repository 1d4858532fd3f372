"""The simulated world: roads, cars, their ground truth, and the camera pictures of them."""
