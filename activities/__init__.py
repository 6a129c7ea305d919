"""The side that does I/O: models, tools, code, stores."""
