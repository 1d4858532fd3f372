"""Results of a regression for people: lines, pages, pictures, tables."""
