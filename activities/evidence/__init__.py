"""Evidence of what a run did: what of Temporal's history goes into it, a worker's seal, and who checks it."""
