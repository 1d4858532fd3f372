"""Describes the supported kinds of devices and chooses the one to compile for."""
