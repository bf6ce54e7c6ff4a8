"""The commands: one file each, holding `command`; a file `explain_log.py` is `explain-log`."""
