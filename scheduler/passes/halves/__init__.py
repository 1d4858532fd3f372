"""Passes that decide where values are halves and where they are float32."""
