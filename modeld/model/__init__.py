"""Models as the loop uses them: loaded from artifacts, run, and replaced."""
