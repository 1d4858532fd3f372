"""A store of model versions on disk: files, manifests, selection."""
