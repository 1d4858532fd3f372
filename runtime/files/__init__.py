"""Files that others name or that we write: opened safely, written whole, cached."""
