"""One file a row format: Row -> Conversation or Segments. To add one: a file here, a line in `catalog.FORMATS`."""
