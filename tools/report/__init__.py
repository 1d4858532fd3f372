"""Pages and charts of reports, and the history of figures over commits."""
