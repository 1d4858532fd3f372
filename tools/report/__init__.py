"""Pages and charts of reports, and the history of metrics over commits."""
