"""The daemon as a service: settings, log, notification, real-time scheduling."""
