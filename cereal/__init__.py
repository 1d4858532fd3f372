"""The bus: messages, services, transports, camera frames and logs.

Lowest layer: imports numpy, pyzmq, pycapnp and the standard library, nothing of this project.
"""
