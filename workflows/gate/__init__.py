"""People and a run: what is asked, who may decide, what a decision comes to. Pure; knows no machine."""
