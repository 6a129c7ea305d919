"""One object for each call of a run: asked about, made, made again, counted, reported."""
