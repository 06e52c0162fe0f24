"""The `headgate` command: one file for each noun, over what the app and its admin offer."""
