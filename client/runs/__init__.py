"""Reading runs: lists, logs, steps, results, costs, and following them. The CLI, console and MCP draw it."""
