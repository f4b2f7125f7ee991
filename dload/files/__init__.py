"""The local file system: whole files or none, and locks between processes."""
