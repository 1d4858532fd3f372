"""Event logs compared field by field, aligned by frame id."""
