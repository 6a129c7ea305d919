"""The command `ratchet`: `app.py` has the table of commands, `render.py` draws; one module per group."""
