"""The vehicle's state: messages, parameters, calibration, and what makes them valid."""
