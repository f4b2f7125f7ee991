"""One verb a file. Each has `command`; dload.cli.verbs lists them."""
