"""From raw tables to what a model reads, and data to try it on."""
