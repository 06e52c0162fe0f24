"""What fits Headgate into other frameworks: one module each, imported only by those who use it."""
