"""The artifact's format, typed and checked; needs no device."""
