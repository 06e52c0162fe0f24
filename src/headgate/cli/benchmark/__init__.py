"""The measurements of `headgate bench`."""
