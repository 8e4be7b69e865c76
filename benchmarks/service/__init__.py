"""The live service under load, beside the same stack answering a constant."""
