"""Where the time of the tests goes, by file and by cause."""
