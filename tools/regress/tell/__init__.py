"""Presents results of a regression to people: text, HTML pages, pictures and tables."""
