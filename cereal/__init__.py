"""The bus: messages, services, transports, camera frames and logs.

This is the lowest layer of the project. It imports numpy, pyzmq, pycapnp and the standard library,
and none of our other packages.
"""
