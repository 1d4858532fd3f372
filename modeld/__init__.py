"""The daemon: camera frames and vehicle state in, driving model messages out, at 20 Hz."""
