"""Report parts for the neural tier and the paper's claims about it."""
