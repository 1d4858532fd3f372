"""Runs the daemon as a service: settings, log, service manager, real-time scheduling."""
