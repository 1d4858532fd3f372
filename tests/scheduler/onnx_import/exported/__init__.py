"""Networks as exporters write them: the form of a graph, not its size, is what each is about."""
