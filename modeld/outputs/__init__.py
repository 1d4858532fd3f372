"""Parses raw output vectors into distributions and fills the messages from them."""
