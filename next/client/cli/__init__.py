"""The command `ratchet`: `app.py` has the table of commands, each module a group of them, `render.py` draws."""
