"""docs/deploy.md, command by command, in a bare Debian: `python -m tests.deploy`."""
