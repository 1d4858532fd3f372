"""Stores references of drives and judges new results by them."""
