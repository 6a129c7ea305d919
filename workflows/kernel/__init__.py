"""The pure kernel: machines that are declared, verified, and advanced one answer at a time.

`step` advances one machine, `stack` a run with machines inside it; `moves` is what people make a run do.
"""
