"""Tools from MCP servers: which servers, one open connection to each, and their tools and results as ours."""
