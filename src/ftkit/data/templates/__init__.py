"""Built-in chat templates, one file each. To add one: a file here, a line in `catalog.TEMPLATES`."""
