"""The engine moves one run: it asks people where it must, makes calls, gives the machine their answers.

`loop.py` moves, `commands.py` obeys what people order, `run_state.py` holds; `calls/` has one object for
each call.
"""
