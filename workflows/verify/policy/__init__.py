"""What an agent can do with nobody asked: what its policy lets pass, and what that comes to in a run."""
