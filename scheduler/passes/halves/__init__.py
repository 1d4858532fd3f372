"""Passes that decide which values are fp16 and which are float32."""
