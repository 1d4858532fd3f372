"""The daemon: camera frames and vehicle state in, driving model messages out, at 20 Hz."""

from modeld.own_packages import put_first

put_first(("cereal", "runtime"))
