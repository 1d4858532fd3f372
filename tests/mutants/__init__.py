"""Small faults planted in the code, one at a time, to see which of them the tests catch."""
