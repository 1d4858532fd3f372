"""Logs, tables and pages that show the work of the compiler."""
