"""Diagnostic output of the compiler: logs, kernel tables and HTML pages."""
