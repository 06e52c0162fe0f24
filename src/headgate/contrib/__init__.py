"""Headgate in other frameworks: one module each, imported only by its users."""
