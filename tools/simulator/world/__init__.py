"""The simulated world: roads, cars, what is true of them, and what cameras see of them."""
