"""Everything that a real GPU has to show, in one run: `make test-gpu`, or a kit to carry there."""
