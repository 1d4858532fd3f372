"""The daemon: reads camera frames and vehicle state, publishes model messages at 20 Hz."""

from modeld.own_packages import put_first

put_first(("cereal", "runtime"))
