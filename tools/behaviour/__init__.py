"""What a model's answers do to the drive, in metres and seconds, and gates on it."""
