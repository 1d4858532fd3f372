"""Health of the daemon: a message on the bus and a file of metrics."""
