"""The artifact format: reading, writing and checking. Needs no device."""
