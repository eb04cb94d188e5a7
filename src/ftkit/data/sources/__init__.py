"""Where rows come from: local files read row by row, and the hub through `datasets`."""
