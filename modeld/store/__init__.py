"""Stores model versions on disk, with their manifests and the selection of models to run."""
