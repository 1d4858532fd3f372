"""The networks in torch, built from an architecture that is plain data."""
