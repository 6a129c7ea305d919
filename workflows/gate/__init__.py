"""Who is asked before an effect, and who may decide. Pure."""
