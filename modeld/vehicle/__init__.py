"""The vehicle's state: messages, parameters, cameras, calibration, and what makes them valid."""
