"""The command line tools: compile, replay, benchmark, inspect. They may import all packages."""
