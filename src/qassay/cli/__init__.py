"""The command line: one file a command, option groups shared; nothing heavy until it is needed."""
