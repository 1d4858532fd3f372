"""Reports the daemon's health as a message on the bus and as a metrics file."""
