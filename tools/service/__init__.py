"""The daemon seen from outside: its health on the bus, its settings as options, its store."""
