"""Everything a person runs: compile, replay, benchmark, inspect. May import all packages."""
